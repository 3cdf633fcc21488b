//! Prompts in the form that a server takes.

use serde_json::{Value, json};

use super::answer::Answer;
use crate::cli::PromptForm;

/// Words that are one token each in most vocabularies.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "for", "that", "on", "with", "as", "are", "this", "be", "by",
    "from", "at", "or", "an", "it", "not", "you", "we", "can", "have", "has", "was", "more", "one", "all",
    "time", "people", "work", "day", "year", "life", "world", "water", "house", "place", "school", "city",
    "book", "hand", "part", "line", "side", "home", "name", "food", "land", "night", "point", "light",
    "white", "black", "red", "good", "new", "old", "long", "small", "large", "high",
];

/// Number of different numbers that a trace may draw for prompts of a form: `ids` if prompts are ids, and else the
/// number of words.
pub(super) fn vocab(form: PromptForm, ids: u32) -> u32 {
    match form {
        PromptForm::Ids => ids,
        PromptForm::Text | PromptForm::Chat => u32::try_from(WORDS.len()).expect("few words"),
    }
}

/// A prompt, with all earlier turns of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::bench) enum LoadPrompt {
    Ids(Vec<u32>),
    Text(String),
    Chat(Vec<Value>),
}

impl LoadPrompt {
    /// The prompt that is made from the numbers of a trace.
    pub(in crate::bench) fn new(form: PromptForm, numbers: &[u32]) -> Self {
        match form {
            PromptForm::Ids => Self::Ids(numbers.to_vec()),
            PromptForm::Text => Self::Text(words(numbers)),
            PromptForm::Chat => Self::Chat(vec![message("user", &words(numbers))]),
        }
    }

    /// Appends a server's answer and the next user message, made from `numbers`.
    pub(super) fn extend(&mut self, answer: &Answer, numbers: &[u32]) {
        match self {
            Self::Ids(ids) => {
                ids.extend(&answer.ids);
                ids.extend(numbers);
            }
            Self::Text(text) => {
                text.push_str(&answer.text);
                text.push(' ');
                text.push_str(&words(numbers));
            }
            Self::Chat(messages) => {
                messages.push(message("assistant", &answer.text));
                messages.push(message("user", &words(numbers)));
            }
        }
    }

    /// Puts the prompt into a body; returns the path of its route.
    pub(super) fn put(&self, body: &mut Value) -> &'static str {
        match self {
            Self::Ids(ids) => body["prompt"] = json!(ids),
            Self::Text(text) => body["prompt"] = json!(text),
            Self::Chat(messages) => {
                body["messages"] = json!(messages);
                return "/chat/completions";
            }
        }
        "/completions"
    }

    pub(super) fn is_ids(&self) -> bool {
        matches!(self, Self::Ids(_))
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn words(numbers: &[u32]) -> String {
    let word = |number: &u32| WORDS[*number as usize % WORDS.len()];
    numbers.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_turns_repeat_everything() {
        let answer = Answer { text: " hand in".into(), ids: vec![7], ..Answer::default() };
        let after = |form| {
            let mut prompt = LoadPrompt::new(form, &[1, 0]);
            prompt.extend(&answer, &[2]);
            let mut body = json!({});
            let path = prompt.put(&mut body);
            (path, body)
        };
        assert_eq!(after(PromptForm::Ids), ("/completions", json!({ "prompt": [1, 0, 7, 2] })));
        assert_eq!(after(PromptForm::Text), ("/completions", json!({ "prompt": "of the hand in and" })));
        let messages = json!([
            { "role": "user", "content": "of the" },
            { "role": "assistant", "content": " hand in" },
            { "role": "user", "content": "and" },
        ]);
        assert_eq!(after(PromptForm::Chat), ("/chat/completions", json!({ "messages": messages })));
    }
}
