//! A conversation, and the token ids of its prompts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pagoda::{Conversation, Message, Model, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Answer;
use crate::generate::read_messages;

/// A conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// Messages of the user and answers, after the system message, if there is one.
    messages: Vec<Message>,
    /// Prompt and answer of the last turn, as the engine has them: with the token that ended the answer, and without.
    seen: Vec<Seen>,
    /// Variables of the chat template.
    variables: Map<String, Value>,
}

/// The beginning of a conversation, as text and as token ids.
#[derive(Debug, Clone)]
struct Seen {
    text: String,
    ids: Vec<u32>,
}

/// A conversation that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChatPrompt {
    /// Text as the chat template renders it; `None` without one.
    text: Option<String>,
    pub(super) ids: Vec<u32>,
}

/// A conversation in a file: the messages of a request to OpenAI's API.
#[derive(Serialize)]
struct File {
    messages: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    role: String,
    content: String,
}

const SYSTEM: &str = "system";

impl History {
    pub(super) fn new(system: Option<String>) -> Self {
        let messages = system.into_iter().map(|text| Message::new(SYSTEM, text)).collect();
        Self { messages, ..Self::default() }
    }

    /// Replaces the variables of the chat template.
    pub(super) fn with_variables(self, variables: Map<String, Value>) -> Self {
        Self { variables, ..self }
    }

    /// Whether the conversation has grown since the start.
    pub(super) fn has_turns(&self) -> bool {
        self.messages.iter().any(|message| message.role != SYSTEM)
    }

    /// Number of messages, the system message included.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Number of tokens up to the last answer.
    pub(super) fn num_tokens(&self) -> usize {
        self.seen.first().map_or(0, |seen| seen.ids.len())
    }

    /// Forgets all but the system message.
    pub(super) fn clear(&mut self) {
        self.messages.retain(|message| message.role == SYSTEM);
        self.seen.clear();
    }

    /// Sets the system message; an empty one is removed.
    pub(super) fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| message.role != SYSTEM);
        if !text.is_empty() {
            self.messages.insert(0, Message::new(SYSTEM, text));
        }
    }

    /// The conversation with `text` as the next message of the user. The part that the engine has seen keeps its ids,
    /// so that its KV is found: a new encoding of the same text may have other ids.
    ///
    /// # Errors
    /// If the chat template refuses the conversation.
    pub(super) fn prompt(&self, model: &Model, text: &str) -> Result<ChatPrompt> {
        let user = Message::new("user", text);
        let messages = self.messages.iter().chain([&user]).map(|message| json!(message)).collect();
        let variables = self.variables.clone();
        let conversation = Conversation { messages, variables, ..Conversation::default() };
        let ids = model.conversation_ids(conversation.clone())?;
        let Some(chat) = &model.chat else { return Ok(ChatPrompt { text: None, ids }) };
        let tokenizer = model.tokenizer()?;
        // What users write never becomes a control token.
        let text = chat.render_conversation(&conversation.as_text(tokenizer))?;
        let known = self.seen.iter().find_map(|seen| seen.continued(tokenizer, &text, &ids));
        Ok(ChatPrompt { ids: known.unwrap_or(ids), text: Some(text) })
    }

    /// Adds a message and its answer.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the answer.
    pub(super) fn answered(
        &mut self,
        model: &Model,
        text: &str,
        prompt: ChatPrompt,
        answer: Answer,
    ) -> Result<()> {
        self.messages.push(Message::new("user", text));
        self.messages.push(Message::new("assistant", answer.text));
        self.seen.clear();
        let Some(rendered) = prompt.text else { return Ok(()) };
        let tokenizer = model.tokenizer()?;
        let without_end = answer.ids.split_last().filter(|(last, _)| tokenizer.is_control(**last));
        for output in [Some(&answer.ids[..]), without_end.map(|(_, rest)| rest)].into_iter().flatten() {
            let text = rendered.clone() + &tokenizer.decode(output, false)?;
            self.seen.push(Seen { text, ids: [&prompt.ids, output].concat() });
        }
        Ok(())
    }

    /// Takes the last message and its answer back. Returns the message; `None` if there is none.
    pub(super) fn retract(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|message| message.role == "user")?;
        self.seen.clear();
        self.messages.drain(at..).next().map(|message| message.content)
    }

    /// Writes the conversation to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let entry =
            |message: &Message| Entry { role: message.role.clone(), content: message.content.clone() };
        let file = File { messages: self.messages.iter().map(entry).collect() };
        let text = serde_json::to_string_pretty(&file)? + "\n";
        fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Reads a conversation from a file, in the forms that `generate --messages` takes.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let message = |message| {
            let entry: Entry = serde_json::from_value(message)
                .with_context(|| format!("{}: not a conversation of texts", path.display()))?;
            Ok(Message::new(entry.role, entry.content))
        };
        let messages = read_messages(path)?.into_iter().map(message).collect::<Result<_>>()?;
        Ok(Self { messages, ..Self::default() })
    }
}

impl Seen {
    /// The ids of `text`, if it continues this beginning, and if they decode to the same text as `fresh`, its ids by
    /// a new encoding.
    fn continued(&self, tokenizer: &Tokenizer, text: &str, fresh: &[u32]) -> Option<Vec<u32>> {
        let rest = text.strip_prefix(&self.text)?;
        let ids = [&self.ids[..], &tokenizer.encode(rest, false).ok()?].concat();
        let same = tokenizer.decode(&ids, false).ok()? == tokenizer.decode(fresh, false).ok()?;
        same.then_some(ids)
    }
}

#[cfg(test)]
mod tests;
