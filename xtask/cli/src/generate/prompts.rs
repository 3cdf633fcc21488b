//! Prompts of `generate`: what is asked, as requests.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use pagoda::{Constraint, Conversation, Model, Request};
use serde_json::{Value, json};

use crate::cli::{Defaults, GenerateArgs};
use crate::ids_file;

/// Roles of messages that servers know.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The requests of a command line.
///
/// # Errors
/// If a file cannot be read or is not what it should be, the model has no tokenizer, or its template refuses the conversation.
pub(super) fn read(args: &GenerateArgs, model: &Model, defaults: Defaults) -> Result<Vec<Request>> {
    let mut request = Request::new(Vec::new()).max_tokens(args.max_tokens).samples(args.n);
    request.sampling = args.sampling.sampling(model, defaults)?;
    request.sampling.log_probs = args.logprobs;
    request.salt.clone_from(&args.salt);
    request.text = model.tokenizer.is_some();
    // Ids of a model without a tokenizer have no text to stop at.
    request.stop = args.stop.iter().filter(|_| request.text).cloned().collect();
    if let Some(path) = &args.json_schema {
        let schema = read_json(path)?;
        let mask = model.mask(&Constraint::Schema(schema)).with_context(|| path.display().to_string())?;
        request.mask = Some(mask);
    }
    let of_prompt = |prompt| {
        let mut request = request.clone();
        request.prompt = prompt;
        request
    };
    Ok(ids(args, model)?.into_iter().map(of_prompt).collect())
}

/// Token ids of each prompt.
fn ids(args: &GenerateArgs, model: &Model) -> Result<Vec<Vec<u32>>> {
    if let Some(path) = &args.ids_file {
        return ids_file::read(path);
    }
    model.tokenizer.as_ref().context("the model has no tokenizer: give token ids with --ids-file")?;
    if let Some(path) = &args.messages {
        return Ok(vec![answering(read_messages(path)?, args, model)?]);
    }
    let texts = texts(args)?;
    // A template would make something of nothing, and the model answer what nobody asked.
    if let Some(index) = texts.iter().position(String::is_empty) {
        bail!("prompt {index}: the prompt is empty");
    }
    texts.iter().map(|text| of_text(text, args, model)).collect()
}

fn texts(args: &GenerateArgs) -> Result<Vec<String>> {
    let path = match (&args.text, &args.prompt_file) {
        (Some(text), _) if text == "-" => Path::new("-"),
        (Some(text), _) => return Ok(vec![text.clone()]),
        (None, Some(path)) => path,
        (None, None) => return Ok(args.prompt.clone()),
    };
    Ok(vec![read_text(path)?])
}

/// Reads a file, or, if the path is `-`, standard input without its final line break.
///
/// # Errors
/// If it cannot be read, with its name.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let is_piped = path == Path::new("-");
    let mut bytes = Vec::new();
    let read = match is_piped {
        true => io::stdin().read_to_end(&mut bytes).map(drop),
        false => fs::read(path).map(|read| bytes = read),
    };
    read.with_context(|| format!("{}: cannot be read", name(path)))?;
    #[cfg(feature = "pdf")]
    if crate::pdf::is_pdf(&bytes) {
        return crate::pdf::text(bytes).with_context(|| name(path));
    }
    let mut text = utf8(bytes).with_context(|| name(path))?;
    // The one that `echo` adds, as llama.cpp has it.
    if is_piped && text.ends_with('\n') {
        text.truncate(text.len() - 1);
        text.truncate(text.strip_suffix('\r').unwrap_or(&text).len());
    }
    Ok(text)
}

/// Decodes bytes as UTF-8.
fn utf8(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        anyhow!("not UTF-8: byte {:#04x} at offset {offset}", error.as_bytes()[offset])
    })
}

/// Name of a file, or of standard input.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn read_json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read_text(path)?).with_context(|| format!("{}: not JSON", name(path)))
}

fn of_text(text: &str, args: &GenerateArgs, model: &Model) -> Result<Vec<u32>> {
    if args.raw || model.chat.is_none() && args.system.is_none() {
        return Ok(model.tokenizer()?.encode(text, true)?);
    }
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let system = args.system.iter().map(|text| message("system", text));
    answering(system.chain([message("user", text)]).collect(), args, model)
}

/// The ids after which the answer to a conversation begins. Control tokens that its texts spell out stay text.
fn answering(messages: Vec<Value>, args: &GenerateArgs, model: &Model) -> Result<Vec<u32>> {
    let conversation =
        Conversation { messages, variables: args.template.variables(), ..Conversation::default() };
    Ok(model.conversation_ids(conversation)?)
}

/// Reads a conversation from a file: a list of messages, or an object that holds the list.
///
/// # Errors
/// If it cannot be read, or is none.
pub(crate) fn read_messages(path: &Path) -> Result<Vec<Value>> {
    let mut file = read_json(path)?;
    let list = match &mut file {
        Value::Object(fields) => {
            let list = fields.remove("messages").unwrap_or_default();
            if list.is_array() && !fields.is_empty() {
                let names = fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                bail!("{}: beside messages, {names} would be left out: flags say the same", name(path));
            }
            list
        }
        _ => file,
    };
    let Value::Array(mut messages) = list else { bail!("{}: no list of messages", name(path)) };
    if messages.is_empty() {
        bail!("{}: the list of messages is empty", name(path));
    }
    for (index, message) in messages.iter_mut().enumerate() {
        let Some(role) = message["role"].as_str().filter(|_| !message["content"].is_null()) else {
            bail!("{}: message {index} has no role or no content", name(path));
        };
        if !ROLES.contains(&role) {
            bail!("{}: message {index} has the role {role:?}; roles are {}", name(path), ROLES.join(", "));
        }
        join_parts(&mut message["content"]).with_context(|| format!("{}: message {index}", name(path)))?;
    }
    Ok(messages)
}

/// Joins content in several parts, as requests to servers may have it, to one text, because not every chat template
/// accepts parts.
fn join_parts(content: &mut Value) -> Result<()> {
    let Value::Array(parts) = content else { return Ok(()) };
    let text = |part: &Value| match part["type"].as_str() {
        Some("text") => part["text"].as_str().map(str::to_owned).context("a part of type text has no text"),
        Some(other) => bail!("a part of type {other}: only text is read"),
        None => bail!("a part of its content has no type"),
    };
    *content = parts.iter().map(text).collect::<Result<Vec<String>>>()?.join("\n").into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_lists_of_messages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.json");
        let told = |text: &str| {
            fs::write(&path, text).unwrap();
            let told =
                read_messages(&path).map_or_else(|error| format!("{error:#}"), |list| list.len().to_string());
            told.replace(path.to_str().unwrap(), "m.json")
        };
        let said = [
            told(r#"[{"role": "user", "content": "Hi"}]"#),
            told(
                r#"{"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]}"#,
            ),
            told(r#"[{"role": "user"}]"#),
            told("[]"),
            told(r#"{"messages": 3}"#),
            told(r#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}"#),
            told(r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#),
            told(r#"[{"role": "user", "content": ["Hi"]}]"#),
            told(r#"[{"role": "usr", "content": "Hi"}]"#),
            told("Hi"),
        ];
        insta::assert_snapshot!(said.join("\n"), @r#"
        1
        2
        m.json: message 0 has no role or no content
        m.json: the list of messages is empty
        m.json: no list of messages
        m.json: beside messages, model, temperature would be left out: flags say the same
        m.json: message 0: a part of type image_url: only text is read
        m.json: message 0: a part of its content has no type
        m.json: message 0 has the role "usr"; roles are system, developer, user, assistant, tool
        m.json: not JSON: expected value at line 1 column 1
        "#);
        let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
        fs::write(&path, parts).unwrap();
        assert_eq!(read_messages(&path).unwrap()[0]["content"], "a\nb");
    }

    #[test]
    fn a_byte_that_is_no_text_is_named() {
        let told = utf8(b"caf\xe9!".to_vec()).unwrap_err().to_string();
        assert_eq!(told, "not UTF-8: byte 0xe9 at offset 3");
        assert_eq!(utf8("é".into()).unwrap(), "é");
    }
}
