//! Answers taken apart as they grow: thoughts, text, and calls of tools.
//!
//! Written here because the crate tool-parser brings 170 others, a parser of Python among them, for its 21
//! formats. These are the two that most open models write: `<tool_call>{..}</tool_call>`, which Qwen, Hermes and
//! SmolLM use, and one bare object, which Llama 3 uses. Thoughts are in `<think>..</think>`.

use rand::random;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
const CALL: &str = "<tool_call>";
/// Ends a call.
pub(crate) const CALLED: &str = "</tool_call>";

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Thought(String),
    Call(ToolCall),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// JSON of the arguments, as the model wrote it.
    pub(crate) arguments: String,
}

impl ToolCall {
    /// An id that no other call has.
    pub(crate) fn new_id(prefix: &str) -> String {
        format!("{prefix}_{:024x}", random::<u128>() >> 32)
    }

    /// Reads a call; `None` if the text is none, or if its arguments are beyond JSON values: numbers such as 1e999, half a
    /// surrogate pair, hundreds of nested lists. Clients send calls back, as objects.
    fn read(text: &str) -> Option<Self> {
        /// Llama 3 calls the arguments parameters.
        #[derive(Deserialize)]
        struct Written<'a> {
            name: String,
            #[serde(borrow, alias = "parameters")]
            arguments: Option<&'a RawValue>,
        }
        let Written { name, arguments } = serde_json::from_str(text.trim()).ok()?;
        let arguments = arguments.map_or("{}", RawValue::get);
        serde_json::from_str::<Map<String, Value>>(arguments).ok()?;
        Some(Self { name, arguments: arguments.to_owned() })
    }
}

/// Parts of an answer that were received and not yet sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) text: String,
    pub(crate) thought: String,
    pub(crate) calls: Vec<ToolCall>,
    /// Number of calls that were sent before.
    pub(crate) first_call: usize,
}

/// An answer as it grows.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    parser: Parser,
    parts: Parts,
}

impl Answer {
    /// An answer that begins inside of a thought if the prompt has begun one.
    pub(crate) fn new(calls: Calls, thinks: bool) -> Self {
        Self { parser: Parser::new(calls, thinks), parts: Parts::default() }
    }

    /// Takes more of the text.
    pub(crate) fn push(&mut self, text: &str) {
        let pieces = self.parser.push(text);
        self.add(pieces);
    }

    /// Takes the end of the text.
    pub(crate) fn finish(&mut self) {
        let pieces = self.parser.finish();
        self.add(pieces);
    }

    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.parts.text.push_str(&text),
                Piece::Thought(thought) => self.parts.thought.push_str(&thought),
                Piece::Call(call) => self.parts.calls.push(call),
            }
        }
    }

    /// Takes the answer's new text since the last call.
    pub(crate) fn take(&mut self) -> Parts {
        let first_call = self.parts.first_call + self.parts.calls.len();
        std::mem::replace(&mut self.parts, Parts { first_call, ..Parts::default() })
    }

    /// Whether there is no new text since the last call.
    pub(crate) fn is_empty(&self) -> bool {
        let Parts { text, thought, calls, .. } = &self.parts;
        text.is_empty() && thought.is_empty() && calls.is_empty()
    }

    /// Whether a thought has begun and not ended.
    pub(crate) fn is_thinking(&self) -> bool {
        self.parser.state == State::Thought
    }

    /// Whether there has been a call.
    pub(crate) fn has_called(&self) -> bool {
        self.parts.first_call + self.parts.calls.len() > 0
    }
}

/// Forms in which an answer calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Calls {
    /// There are no tools: everything is text.
    #[default]
    Never,
    /// The model decides.
    Maybe,
    /// The answer is one call, without tags.
    Always,
}

/// Whether a prompt ends with the begin of a thought.
pub(crate) fn is_thought_begun(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Takes an answer apart.
#[derive(Debug, Clone)]
struct Parser {
    calls: Calls,
    state: State,
    /// Text that is not certain yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only blanks have come; a thought may begin.
    Start,
    Thought,
    /// The thought is over, and only blanks followed.
    Opening,
    Text,
    /// Within the tags of a call.
    Call,
    /// The answer may be one bare call, which is decided at its end.
    Bare,
}

impl Parser {
    fn new(calls: Calls, thinks: bool) -> Self {
        Self { calls, state: if thinks { State::Thought } else { State::Start }, held: String::new() }
    }

    /// Takes more of the answer; returns the parts that are certain.
    fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer; returns the rest.
    fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Call | State::Bare => match ToolCall::read(&rest) {
                Some(call) => vec![Piece::Call(call)],
                None if self.state == State::Call => vec![Piece::Text(format!("{CALL}{rest}"))],
                None => text(rest),
            },
            State::Thought if !rest.is_empty() => vec![Piece::Thought(rest)],
            _ => text(rest),
        }
    }

    /// Processes one part of the held text; false if more text is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start | State::Opening => self.begin(),
            State::Thought => match self.until(THOUGHT) {
                Ok(thought) => {
                    pieces.extend(Some(thought).filter(|thought| !thought.is_empty()).map(Piece::Thought));
                    self.state = State::Opening;
                    true
                }
                Err(certain) => {
                    pieces.extend(Some(certain).filter(|thought| !thought.is_empty()).map(Piece::Thought));
                    false
                }
            },
            State::Text if self.calls == Calls::Maybe => match self.until(CALL) {
                Ok(before) => {
                    pieces.extend(text(before));
                    self.state = State::Call;
                    true
                }
                Err(certain) => {
                    pieces.extend(text(certain));
                    false
                }
            },
            State::Text => {
                pieces.extend(text(std::mem::take(&mut self.held)));
                false
            }
            State::Call => {
                let Some((inner, rest)) = self.held.split_once(CALLED) else { return false };
                let piece = ToolCall::read(inner).map(Piece::Call);
                pieces.push(piece.unwrap_or_else(|| Piece::Text(format!("{CALL}{inner}{CALLED}"))));
                self.held = rest.to_owned();
                self.state = State::Opening;
                true
            }
            State::Bare => false,
        }
    }

    /// Decides what begins, once enough text has come.
    fn begin(&mut self) -> bool {
        let trimmed = self.held.trim_start();
        let may_think = self.state == State::Start;
        if may_think && let Some(rest) = trimmed.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.state = State::Thought;
            return true;
        }
        let calls = self.calls == Calls::Maybe;
        let undecided = trimmed.is_empty()
            || (may_think && THINK.starts_with(trimmed))
            || (calls && CALL.starts_with(trimmed) && trimmed.len() < CALL.len());
        if undecided {
            return false;
        }
        self.state = match self.calls {
            Calls::Always => State::Bare,
            Calls::Maybe if may_think && trimmed.starts_with('{') => State::Bare,
            _ => State::Text,
        };
        // Blanks before a thought or a call, or between two, belong to neither.
        if !may_think || trimmed.starts_with(CALL) && calls {
            self.held = trimmed.to_owned();
        }
        true
    }

    /// Takes the held text before `tag`, and drops the tag; or, until it comes, takes text that cannot be part of it.
    fn until(&mut self, tag: &str) -> Result<String, String> {
        if let Some((before, rest)) = self.held.split_once(tag) {
            let before = before.to_owned();
            self.held = rest.to_owned();
            return Ok(before);
        }
        let starts = self.held.char_indices().map(|(at, _)| at);
        let cut = starts.rev().take(tag.len()).filter(|at| tag.starts_with(&self.held[*at..])).last();
        let rest = self.held.split_off(cut.unwrap_or(self.held.len()));
        Err(std::mem::replace(&mut self.held, rest))
    }
}

fn text(text: String) -> Vec<Piece> {
    if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of an answer that is read in parts of `size` characters; neighbours of a kind are joined.
    fn parse(answer: &str, calls: Calls, size: usize) -> Vec<Piece> {
        let mut parser = Parser::new(calls, false);
        let chars: Vec<char> = answer.chars().collect();
        let parts = chars.chunks(size).flat_map(|part| parser.push(&part.iter().collect::<String>()));
        let mut pieces: Vec<Piece> = parts.collect();
        pieces.extend(parser.finish());
        let mut joined: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (joined.last_mut(), piece) {
                (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(&text),
                (Some(Piece::Thought(before)), Piece::Thought(text)) => before.push_str(&text),
                (_, piece) => joined.push(piece),
            }
        }
        joined
    }

    fn call(name: &str, arguments: &str) -> Piece {
        Piece::Call(ToolCall { name: name.into(), arguments: arguments.into() })
    }

    #[test]
    fn answers_are_taken_apart_in_parts_of_any_size() {
        let (text, thought) = (|t: &str| Piece::Text(t.into()), |t: &str| Piece::Thought(t.into()));
        let cases = [
            ("plain < text <tool", vec![text("plain < text <tool")]),
            (" \n<think>a < b</think>\n\nYes.", vec![thought("a < b"), text("Yes.")]),
            ("<think>cut off</thi", vec![thought("cut off</thi")]),
            ("Not <think>that</think>", vec![text("Not <think>that</think>")]),
            (
                "Let me see. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"<\"}}\n</tool_call>\n\
                 <tool_call>{\"name\":\"g\"}</tool_call>",
                vec![text("Let me see. "), call("f", "{\"z\": 1, \"a\": \"<\"}"), call("g", "{}")],
            ),
            ("<tool_call>{\"name\":\"f\",\"arguments\":{}}", vec![call("f", "{}")]),
            ("<tool_call>not JSON</tool_call>.", vec![text("<tool_call>not JSON</tool_call>.")]),
            (
                "<think>t</think>\n<tool_call>{\"name\":\"f\"}</tool_call>",
                vec![thought("t"), call("f", "{}")],
            ),
            ("{\"name\": \"f\", \"parameters\": {\"x\": 2}}", vec![call("f", "{\"x\": 2}")]),
            ("{\"nam\": 1}", vec![text("{\"nam\": 1}")]),
        ];
        for (answer, pieces) in cases {
            for size in 1..=answer.len() {
                assert_eq!(parse(answer, Calls::Maybe, size), pieces, "{answer} in parts of {size}");
            }
        }
    }

    #[test]
    fn arguments_that_no_json_value_has_are_text() {
        let nested = format!("{}1{}", "[".repeat(129), "]".repeat(129));
        for value in ["1e999", "-1e400", "\"\\ud800\"", &nested] {
            let answer = format!("{{\"name\": \"f\", \"arguments\": {{\"x\": {value}}}}}");
            assert_eq!(parse(&answer, Calls::Maybe, 7), [Piece::Text(answer.clone())]);
            assert_eq!(parse(&answer, Calls::Always, 7), [Piece::Text(answer.clone())]);
        }
    }

    #[test]
    fn without_tools_everything_is_text() {
        let answer = "<tool_call>{\"name\":\"f\"}</tool_call>";
        assert_eq!(parse(answer, Calls::Never, 3), [Piece::Text(answer.into())]);
        assert_eq!(parse(" {\"a\"", Calls::Never, 2), [Piece::Text(" {\"a\"".into())]);
    }

    #[test]
    fn a_forced_call_comes_without_tags() {
        let answer = "{\"name\": \"f\", \"arguments\": {}}";
        assert_eq!(parse(answer, Calls::Always, 4), [call("f", "{}")]);
        assert_eq!(
            parse("{\"name\": \"f\", \"argu", Calls::Always, 4),
            [Piece::Text("{\"name\": \"f\", \"argu".into())]
        );
    }

    #[test]
    fn a_thought_may_begin_in_the_prompt() {
        assert!(is_thought_begun("<|assistant|><think>\n") && !is_thought_begun("<think>a"));
        let mut parser = Parser::new(Calls::Never, true);
        assert_eq!(parser.push("a</think>b"), [Piece::Thought("a".into()), Piece::Text("b".into())]);
    }
}
