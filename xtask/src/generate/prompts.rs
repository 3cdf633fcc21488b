//! Prompts of `generate`: what is asked, as requests.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use pagoda::{Conversation, Model, Request};
use serde_json::{Value, json};
use serve::SchemaMasks;

use crate::cli::GenerateArgs;
use crate::ids_file;

/// The requests of a command line.
///
/// # Errors
/// If a file cannot be read or is not what it should be, the model has no tokenizer, or its template refuses the conversation.
pub(super) fn read(args: &GenerateArgs, model: &Model) -> Result<Vec<Request>> {
    let mut request =
        Request::new(Vec::new()).max_tokens(args.max_tokens).samples(args.beams.unwrap_or(args.n));
    request.sampling = args.sampling.sampling(model)?;
    request.sampling.log_probs = args.logprobs;
    request.salt.clone_from(&args.salt);
    request.text = model.tokenizer.is_some();
    // Ids of a model without a tokenizer have no text to stop at.
    request.stop = args.stop.iter().filter(|_| request.text).cloned().collect();
    if let Some(path) = &args.json_schema {
        let schema = read_json(path)?;
        request.mask =
            Some(SchemaMasks::new(model)?.mask(schema).with_context(|| path.display().to_string())?);
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
        return Ok(vec![answering(messages(path)?, args, model)?]);
    }
    texts(args)?.iter().map(|text| of_text(text, args, model)).collect()
}

fn texts(args: &GenerateArgs) -> Result<Vec<String>> {
    let path = match (&args.text, &args.prompt_file) {
        (Some(text), _) if text == "-" => Path::new("-"),
        (Some(text), _) => return Ok(vec![text.clone()]),
        (None, Some(path)) => path,
        (None, None) => return Ok(args.prompt.clone()),
    };
    Ok(vec![read_text(path).with_context(|| format!("{}: cannot be read", path.display()))?])
}

/// Reads a file, or standard input where the path is `-`.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    fs::read_to_string(path)
}

fn read_json(path: &Path) -> Result<Value> {
    let text = read_text(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}: not JSON", path.display()))
}

fn of_text(text: &str, args: &GenerateArgs, model: &Model) -> Result<Vec<u32>> {
    if args.raw || model.chat.is_none() && args.system.is_none() {
        return Ok(model.tokenizer()?.encode(text, true)?);
    }
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let system = args.system.iter().map(|text| message("system", text));
    answering(system.chain([message("user", text)]).collect(), args, model)
}

/// The ids behind which the answer to a conversation begins. Control tokens that its texts spell out stay text.
fn answering(messages: Vec<Value>, args: &GenerateArgs, model: &Model) -> Result<Vec<u32>> {
    let conversation =
        Conversation { messages, variables: args.template.variables(), ..Conversation::default() };
    Ok(model.conversation_ids(conversation)?)
}

/// A conversation in a file: its messages, or an object that holds them.
fn messages(path: &Path) -> Result<Vec<Value>> {
    let mut file = read_json(path)?;
    let list = match &mut file {
        Value::Object(fields) if fields.len() == 1 => {
            fields.get_mut("messages").map(Value::take).unwrap_or_default()
        }
        _ => file,
    };
    let Value::Array(messages) = list else { bail!("{}: no list of messages", path.display()) };
    let is_message = |message: &Value| message["role"].is_string() && !message["content"].is_null();
    match messages.iter().position(|message| !is_message(message)) {
        Some(index) => bail!("{}: message {index} has no role or no content", path.display()),
        None if messages.is_empty() => bail!("{}: the list of messages is empty", path.display()),
        None => Ok(messages),
    }
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
                messages(&path).map_or_else(|error| format!("{error:#}"), |list| list.len().to_string());
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
            told("Hi"),
        ];
        insta::assert_snapshot!(said.join("\n"), @"
        1
        2
        m.json: message 0 has no role or no content
        m.json: the list of messages is empty
        m.json: no list of messages
        m.json: not JSON: expected value at line 1 column 1
        ");
    }
}
