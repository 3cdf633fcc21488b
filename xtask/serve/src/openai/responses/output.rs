//! The items of a response as they grow.

use pagoda::tools::{AnswerPart, CallPart};
use serde_json::{Value, json};

use crate::ids::new_id;

/// The output of a response.
#[derive(Debug, Default)]
pub(super) struct Output {
    items: Vec<Item>,
    /// Whether the last item may grow.
    open: bool,
}

/// One item.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) id: String,
    /// Text of the item, or the arguments of its call.
    pub(super) text: String,
}

/// The kinds of items that a model makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Message,
    /// A call of a tool: the id that its result refers to, and the tool's name.
    Call {
        call_id: String,
        name: String,
    },
}

/// Something that happened to the item at an index.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Begun(usize),
    Grown(usize, String),
    Ended(usize),
}

impl Output {
    /// Adds new parts of an answer; returns the changes of the items.
    pub(super) fn add(&mut self, pieces: Vec<AnswerPart>) -> Vec<Change> {
        let mut changes = Vec::new();
        for piece in pieces {
            match piece {
                AnswerPart::Text(text) => self.grow(Kind::Message, text, &mut changes),
                AnswerPart::Thought(thought) => self.grow(Kind::Reasoning, thought, &mut changes),
                AnswerPart::Call(CallPart { name, arguments, .. }) => {
                    if let Some(name) = name {
                        self.begin(Kind::Call { call_id: new_id("call"), name }, &mut changes);
                    }
                    self.extend(arguments, &mut changes);
                }
            }
        }
        changes
    }

    /// Ends the output. If it has neither a message nor a call, adds an empty message.
    pub(super) fn finish(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if !self.items.iter().any(|item| item.kind != Kind::Reasoning) {
            self.begin(Kind::Message, &mut changes);
        }
        self.close(&mut changes);
        changes
    }

    fn grow(&mut self, kind: Kind, text: String, changes: &mut Vec<Change>) {
        if text.is_empty() {
            return;
        }
        if !self.open || self.items.last().is_none_or(|last| last.kind != kind) {
            self.begin(kind, changes);
        }
        self.extend(text, changes);
    }

    /// Adds to the last item.
    fn extend(&mut self, text: String, changes: &mut Vec<Change>) {
        if !text.is_empty() {
            let last = self.items.len() - 1;
            self.items[last].text.push_str(&text);
            changes.push(Change::Grown(last, text));
        }
    }

    fn begin(&mut self, kind: Kind, changes: &mut Vec<Change>) {
        self.close(changes);
        let id = new_id(match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call { .. } => "fc",
        });
        changes.push(Change::Begun(self.items.len()));
        self.items.push(Item { kind, id, text: String::new() });
        self.open = true;
    }

    fn close(&mut self, changes: &mut Vec<Change>) {
        if std::mem::take(&mut self.open) {
            changes.push(Change::Ended(self.items.len() - 1));
        }
    }

    pub(super) fn item(&self, index: usize) -> &Item {
        &self.items[index]
    }

    /// All items. If the answer was `cut`, the last one is incomplete.
    pub(super) fn json(&self, cut: bool) -> Vec<Value> {
        let last = self.items.len().wrapping_sub(1);
        let status = |at| if cut && at == last { "incomplete" } else { "completed" };
        self.items.iter().enumerate().map(|(at, item)| item.json(status(at))).collect()
    }
}

impl Item {
    /// The item with all of its text.
    pub(super) fn json(&self, status: &str) -> Value {
        let Self { kind, id, text } = self;
        match kind {
            Kind::Reasoning => {
                json!({ "type": "reasoning", "id": id, "status": status, "summary": [], "content": [self.part()] })
            }
            Kind::Message => {
                json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": [self.part()] })
            }
            Kind::Call { call_id, name } => json!({
                "type": "function_call", "id": id, "status": status,
                "call_id": call_id, "name": name, "arguments": text,
            }),
        }
    }

    /// The item at its begin, without any content.
    pub(super) fn begun(&self) -> Value {
        let empty = Self { kind: self.kind.clone(), id: self.id.clone(), text: String::new() };
        let mut item = empty.json("in_progress");
        if let Some(content) = item.get_mut("content") {
            *content = json!([]);
        }
        item
    }

    /// The content part that contains the item's text; calls do not have such a part.
    pub(super) fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] }),
        }
    }

    /// First part of the names of the events about the item's text.
    pub(super) fn event(&self) -> &'static str {
        match self.kind {
            Kind::Reasoning => "response.reasoning_text",
            Kind::Message => "response.output_text",
            Kind::Call { .. } => "response.function_call_arguments",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<AnswerPart> {
        vec![AnswerPart::Text(text.into())]
    }

    fn call(index: usize, name: Option<&str>, arguments: &str) -> Vec<AnswerPart> {
        vec![AnswerPart::Call(CallPart { index, name: name.map(str::to_owned), arguments: arguments.into() })]
    }

    #[test]
    fn items_begin_and_end_as_the_answer_changes() {
        use Change::{Begun, Ended, Grown};
        let mut output = Output::default();
        assert_eq!(output.add(vec![AnswerPart::Thought("t".into())]), [Begun(0), Grown(0, "t".into())]);
        assert_eq!(output.add(text("a")), [Ended(0), Begun(1), Grown(1, "a".into())]);
        assert_eq!(output.add(text("b")), [Grown(1, "b".into())]);
        assert_eq!(output.add(call(0, Some("f"), "{")), [Ended(1), Begun(2), Grown(2, "{".into())]);
        assert_eq!(output.add(call(0, None, "}")), [Grown(2, "}".into())]);
        assert_eq!(output.add(call(1, Some("f"), "{}")), [Ended(2), Begun(3), Grown(3, "{}".into())]);
        assert_eq!(output.finish(), [Ended(3)]);
        let kinds: Vec<_> = output.items.iter().map(|item| item.json("completed")["type"].clone()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
        assert_eq!([&output.item(1).text, &output.item(2).text], ["ab", "{}"]);
    }

    #[test]
    fn an_empty_answer_is_an_empty_message() {
        let mut output = Output::default();
        assert_eq!(output.finish(), [Change::Begun(0), Change::Ended(0)]);
        assert_eq!(output.json(true)[0]["status"], "incomplete");
    }
}
