//! Answers taken apart as they grow: thoughts, text, and calls of tools.
//!
//! Written here because the crate tool-parser brings 170 others, a parser of Python among them, for its 21
//! formats. These are the two that most open models write: `<tool_call>{..}</tool_call>`, which Qwen, Hermes and
//! SmolLM use, and one bare object, which Llama 3 uses. Thoughts are in `<think>..</think>`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::arguments::{Nesting, readable};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
const CALL: &str = "<tool_call>";
/// Tag that ends a call.
pub(super) const CALLED: &str = "</tool_call>";

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text for the user.
    Text(String),
    /// Text of a thought.
    Thought(String),
    /// A part of a call.
    Call(CallPart),
}

/// A part of a call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPart {
    /// Number of calls of the answer before this one.
    pub index: usize,
    /// Name of the tool, in the first part of a call.
    pub name: Option<String>,
    /// More of the JSON of the arguments, as the model writes it.
    pub arguments: String,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// The arguments, a JSON object as the model wrote it; [`readable`](super::readable) reads it even if it is cut off.
    pub arguments: String,
}

/// A whole answer, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// Text for the user.
    pub text: String,
    /// Thoughts before the answer's text; empty if there are none.
    pub thought: String,
    /// Calls of tools, in their order.
    pub calls: Vec<ToolCall>,
}

impl From<Vec<AnswerPart>> for ParsedAnswer {
    fn from(parts: Vec<AnswerPart>) -> Self {
        let mut parsed = Self::default();
        for part in parts {
            match part {
                AnswerPart::Text(text) => parsed.text.push_str(&text),
                AnswerPart::Thought(text) => parsed.thought.push_str(&text),
                AnswerPart::Call(CallPart { name: Some(name), arguments, .. }) => {
                    parsed.calls.push(ToolCall { name, arguments });
                }
                AnswerPart::Call(CallPart { name: None, arguments, .. }) => {
                    let call = parsed.calls.last_mut().expect("a call begins with its name");
                    call.arguments.push_str(&arguments);
                }
            }
        }
        parsed
    }
}

impl ToolCall {
    /// The call in the form that chat templates take.
    pub(crate) fn for_template(&self) -> Value {
        json!({ "type": "function", "function": { "name": self.name, "arguments": readable(&self.arguments) } })
    }

    /// Reads a call; `None` if the text is none.
    fn read(text: &str) -> Option<Self> {
        /// A call as models write it. Llama 3 names the arguments `parameters`.
        #[derive(Deserialize)]
        struct Written<'a> {
            name: String,
            #[serde(borrow, alias = "parameters")]
            arguments: Option<&'a RawValue>,
        }
        let Written { name, arguments } = serde_json::from_str(text.trim()).ok()?;
        let arguments = arguments.map_or("{}", RawValue::get);
        arguments.starts_with('{').then(|| Self { name, arguments: arguments.to_owned() })
    }
}

/// Splits an answer, as it grows, into text, thoughts and calls of tools.
#[derive(Debug, Clone, Default)]
pub struct AnswerParser {
    parser: Parser,
    /// Parts that the caller has not taken yet.
    pieces: Vec<AnswerPart>,
}

impl AnswerParser {
    /// Begins an answer: inside of a thought if the prompt has begun one.
    #[must_use]
    pub fn new(calls: Calls, thinks: bool) -> Self {
        Self { parser: Parser::new(calls, thinks), pieces: Vec::new() }
    }

    /// Takes more of the text.
    pub fn push(&mut self, text: &str) {
        let pieces = self.parser.push(text);
        pieces.into_iter().for_each(|piece| add(&mut self.pieces, piece));
    }

    /// Takes the end of the text. A call that is cut off counts as a call if the name of its tool is complete.
    pub fn finish(&mut self) {
        let pieces = self.parser.finish();
        pieces.into_iter().for_each(|piece| add(&mut self.pieces, piece));
    }

    /// Takes the parts since the last call.
    #[must_use]
    pub fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.pieces)
    }

    /// Takes a whole answer apart.
    #[must_use]
    pub fn parse(mut self, answer: &str) -> ParsedAnswer {
        self.push(answer);
        self.finish();
        self.take().into()
    }

    /// Whether a thought has begun and not ended.
    #[must_use]
    pub fn is_thinking(&self) -> bool {
        self.parser.state == State::Thought
    }

    /// Whether the answer has called a tool.
    #[must_use]
    pub fn has_called(&self) -> bool {
        self.parser.calls_begun > 0
    }
}

/// Adds a part to a list. If the last part of the list is of the same kind, the function appends to that part.
pub fn add(pieces: &mut Vec<AnswerPart>, piece: AnswerPart) {
    match (pieces.last_mut(), piece) {
        (Some(AnswerPart::Text(before)), AnswerPart::Text(text)) => before.push_str(&text),
        (Some(AnswerPart::Thought(before)), AnswerPart::Thought(text)) => before.push_str(&text),
        (Some(AnswerPart::Call(before)), AnswerPart::Call(call)) if before.index == call.index => {
            before.arguments.push_str(&call.arguments);
        }
        (_, piece) => pieces.push(piece),
    }
}

/// Forms in which an answer calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// There are no tools: everything is text.
    #[default]
    Never,
    /// The model decides.
    Maybe,
    /// The model decides, and writes calls between tags: an object without them is text.
    Tagged,
    /// The answer is one call, without tags.
    Always,
}

/// Whether a prompt ends with the begin of a thought.
pub(super) fn is_thought_begun(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// State of the division of an answer into parts.
#[derive(Debug, Clone, Default)]
struct Parser {
    calls: Calls,
    state: State,
    /// Number of calls that have begun.
    calls_begun: usize,
    /// Text that is not certain yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    /// Only blanks have come; a thought may begin.
    Start,
    Thought,
    /// The thought or a call is over, and only blanks followed.
    Opening,
    Text,
    Call(Form, CallProgress),
}

/// The way in which a call is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Within tags.
    Tagged,
    /// As one bare object.
    Bare,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallProgress {
    /// The name has not come yet.
    Head,
    /// The fields come in another order, so that the call is read when it is complete.
    Whole,
    /// The arguments are sent on while they arrive.
    Arguments(Nesting),
    /// The arguments have ended.
    Tail,
}

impl Parser {
    fn new(calls: Calls, thinks: bool) -> Self {
        let state = if thinks { State::Thought } else { State::Start };
        Self { calls, state, calls_begun: 0, held: String::new() }
    }

    /// Takes more of the answer; returns the parts that are certain.
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer and returns the remaining parts. A call that is cut off counts as a call if the name of its tool
    /// is complete.
    fn finish(&mut self) -> Vec<AnswerPart> {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Call(form, CallProgress::Head | CallProgress::Whole) => {
                let is_certain = form == Form::Tagged || self.calls == Calls::Always;
                let cut = || Head::read(&rest).1.filter(|_| is_certain).map(|name| (name, String::new()));
                match ToolCall::read(&rest).map(|call| (call.name, call.arguments)).or_else(cut) {
                    Some((name, arguments)) => vec![self.call(name, arguments)],
                    None if form == Form::Tagged => text(format!("{CALL}{rest}")),
                    None => text(rest),
                }
            }
            State::Call(..) => Vec::new(),
            State::Opening if rest.trim().is_empty() => Vec::new(),
            State::Thought if !rest.is_empty() => vec![AnswerPart::Thought(rest)],
            _ => text(rest),
        }
    }

    /// A new call.
    fn call(&mut self, name: String, arguments: String) -> AnswerPart {
        let index = self.calls_begun;
        self.calls_begun += 1;
        AnswerPart::Call(CallPart { index, name: Some(name), arguments })
    }

    /// Processes one part of the held text; false if more text is needed.
    fn step(&mut self, pieces: &mut Vec<AnswerPart>) -> bool {
        match self.state {
            State::Start | State::Opening => self.begin(),
            State::Thought => {
                let (thought, ended) = self.until(THOUGHT);
                pieces.extend(Some(thought).filter(|thought| !thought.is_empty()).map(AnswerPart::Thought));
                if ended {
                    self.state = State::Opening;
                }
                ended
            }
            State::Text if matches!(self.calls, Calls::Maybe | Calls::Tagged) => {
                let (before, ended) = self.until(CALL);
                pieces.extend(text(before));
                if ended {
                    self.state = State::Call(Form::Tagged, CallProgress::Head);
                }
                ended
            }
            State::Text => {
                pieces.extend(text(std::mem::take(&mut self.held)));
                false
            }
            State::Call(form, progress) => self.step_call(form, progress, pieces),
        }
    }

    fn step_call(&mut self, form: Form, progress: CallProgress, pieces: &mut Vec<AnswerPart>) -> bool {
        match progress {
            CallProgress::Head => match Head::read(&self.held) {
                (Head::Open, _) => false,
                (Head::Other, _) => {
                    self.state = State::Call(form, CallProgress::Whole);
                    true
                }
                (Head::Arguments { at }, name) => {
                    self.held.drain(..at);
                    let call = self.call(name.expect("arguments follow a name"), String::new());
                    pieces.push(call);
                    self.state = State::Call(form, CallProgress::Arguments(Nesting::default()));
                    true
                }
            },
            CallProgress::Whole if form == Form::Bare => false,
            CallProgress::Whole => {
                let Some((inner, rest)) = self.held.split_once(CALLED) else { return false };
                let (inner, rest) = (inner.to_owned(), rest.to_owned());
                match ToolCall::read(&inner) {
                    Some(call) => pieces.push(self.call(call.name, call.arguments)),
                    None => pieces.push(AnswerPart::Text(format!("{CALL}{inner}{CALLED}"))),
                }
                self.held = rest;
                self.state = State::Opening;
                true
            }
            CallProgress::Arguments(mut nesting) => {
                let end = self.held.bytes().position(|byte| nesting.step(byte));
                let rest = self.held.split_off(end.map_or(self.held.len(), |end| end + 1));
                let arguments = std::mem::replace(&mut self.held, rest);
                if !arguments.is_empty() {
                    let index = self.calls_begun - 1;
                    pieces.push(AnswerPart::Call(CallPart { index, name: None, arguments }));
                }
                let progress =
                    if end.is_some() { CallProgress::Tail } else { CallProgress::Arguments(nesting) };
                self.state = State::Call(form, progress);
                end.is_some()
            }
            CallProgress::Tail => {
                let end = if form == Form::Tagged { CALLED } else { "}" };
                let Some((_, rest)) = self.held.split_once(end) else { return false };
                self.held = rest.to_owned();
                self.state = State::Opening;
                true
            }
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
        let calls = matches!(self.calls, Calls::Maybe | Calls::Tagged);
        let undecided = trimmed.is_empty()
            || (may_think && THINK.starts_with(trimmed))
            || (calls && CALL.starts_with(trimmed) && trimmed.len() < CALL.len());
        if undecided {
            return false;
        }
        self.state = match self.calls {
            Calls::Always if self.calls_begun == 0 => State::Call(Form::Bare, CallProgress::Head),
            Calls::Maybe if may_think && trimmed.starts_with('{') => {
                State::Call(Form::Bare, CallProgress::Head)
            }
            _ => State::Text,
        };
        // Blanks before a thought or a call, or between two, belong to neither.
        if !may_think || trimmed.starts_with(CALL) && calls {
            self.held = trimmed.to_owned();
        }
        true
    }

    /// Takes the held text before `tag`, and drops the tag; or, until it comes, takes text that cannot be part of it. The
    /// second value says whether the tag has come.
    fn until(&mut self, tag: &str) -> (String, bool) {
        if let Some((before, rest)) = self.held.split_once(tag) {
            let before = before.to_owned();
            self.held = rest.to_owned();
            return (before, true);
        }
        let starts = self.held.char_indices().map(|(at, _)| at);
        let cut = starts.rev().take(tag.len()).filter(|at| tag.starts_with(&self.held[*at..])).last();
        let rest = self.held.split_off(cut.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }
}

/// The beginning of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// The text so far does not decide yet.
    Open,
    /// A beginning other than `{"name": NAME, "arguments": {`.
    Other,
    /// The beginning of a call whose arguments begin at this byte.
    Arguments { at: usize },
}

impl Head {
    /// Reads the beginning of a call, and the tool's name as soon as it is complete.
    fn read(text: &str) -> (Self, Option<String>) {
        let mut name = None;
        let mut json = Lexer { text, at: 0 };
        let head = Self::scan(&mut json, &mut name).unwrap_or_else(|head| head);
        (head, name)
    }

    fn scan(json: &mut Lexer<'_>, name: &mut Option<String>) -> Result<Self, Self> {
        json.sign('{')?;
        if json.string()? != "name" {
            return Err(Self::Other);
        }
        json.sign(':')?;
        let named = json.string()?;
        *name = Some(named);
        json.sign(',')?;
        // Llama 3 calls the arguments parameters.
        if !matches!(json.string()?.as_str(), "arguments" | "parameters") {
            return Err(Self::Other);
        }
        json.sign(':')?;
        let at = json.skip_blanks()?;
        if json.text[at..].starts_with('{') { Ok(Self::Arguments { at }) } else { Err(Self::Other) }
    }
}

/// Reads the first signs of a JSON text that may be cut anywhere.
struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

impl Lexer<'_> {
    fn skip_blanks(&mut self) -> Result<usize, Head> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        if self.at == self.text.len() { Err(Head::Open) } else { Ok(self.at) }
    }

    fn sign(&mut self, sign: char) -> Result<(), Head> {
        let at = self.skip_blanks()?;
        if !self.text[at..].starts_with(sign) {
            return Err(Head::Other);
        }
        self.at += sign.len_utf8();
        Ok(())
    }

    fn string(&mut self) -> Result<String, Head> {
        let at = self.skip_blanks()?;
        let rest = &self.text[at..];
        if !rest.starts_with('"') {
            return Err(Head::Other);
        }
        let mut position = Nesting::default();
        let end = rest.bytes().position(|byte| {
            let was_text = position.is_text;
            position.step(byte);
            was_text && !position.is_text
        });
        let end = end.ok_or(Head::Open)? + 1;
        self.at += end;
        serde_json::from_str(&rest[..end]).map_err(|_| Head::Other)
    }
}

fn text(text: String) -> Vec<AnswerPart> {
    if text.is_empty() { Vec::new() } else { vec![AnswerPart::Text(text)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of an answer that is read in parts of `size` characters; neighbours of a kind are joined.
    fn parse(answer: &str, calls: Calls, size: usize) -> Vec<AnswerPart> {
        let mut parsed = AnswerParser::new(calls, false);
        let chars: Vec<char> = answer.chars().collect();
        chars.chunks(size).for_each(|part| parsed.push(&part.iter().collect::<String>()));
        parsed.finish();
        parsed.take()
    }

    fn call(index: usize, name: &str, arguments: &str) -> AnswerPart {
        AnswerPart::Call(CallPart { index, name: Some(name.into()), arguments: arguments.into() })
    }

    fn text(text: &str) -> AnswerPart {
        AnswerPart::Text(text.into())
    }

    #[test]
    fn answers_are_taken_apart_in_parts_of_any_size() {
        let thought = |text: &str| AnswerPart::Thought(text.into());
        let cases = [
            ("plain < text <tool", vec![text("plain < text <tool")]),
            (" \n<think>a < b</think>\n\nYes.", vec![thought("a < b"), text("Yes.")]),
            ("<think>cut off</thi", vec![thought("cut off</thi")]),
            ("Not <think>that</think>", vec![text("Not <think>that</think>")]),
            (
                "Let me see. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"<\"}}\n</tool_call>\n\
                 <tool_call>{\"name\":\"g\"}</tool_call>\n",
                vec![text("Let me see. "), call(0, "f", "{\"z\": 1, \"a\": \"<\"}"), call(1, "g", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> Done.",
                vec![call(0, "f", "{}"), text("Done.")],
            ),
            ("<tool_call>{\"name\":\"f\",\"arguments\":{}}", vec![call(0, "f", "{}")]),
            (
                "<tool_call>{\"arguments\":{\"x\":1},\"name\":\"f\"}</tool_call>",
                vec![call(0, "f", "{\"x\":1}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</tool_call> \\\"}\"}}</tool_call>",
                vec![call(0, "f", "{\"x\":\"</tool_call> \\\"}\"}")],
            ),
            ("<tool_call>not JSON</tool_call>.", vec![text("<tool_call>not JSON</tool_call>.")]),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>",
                vec![text("<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>")],
            ),
            (
                "<think>t</think>\n<tool_call>{\"name\":\"f\"}</tool_call>",
                vec![thought("t"), call(0, "f", "{}")],
            ),
            ("{\"name\": \"f\", \"parameters\": {\"x\": 2}}", vec![call(0, "f", "{\"x\": 2}")]),
            ("{\"nam\": 1}", vec![text("{\"nam\": 1}")]),
            ("{\"name\": \"f\"", vec![text("{\"name\": \"f\"")]),
        ];
        for (answer, pieces) in cases {
            for size in 1..=answer.len() {
                assert_eq!(parse(answer, Calls::Maybe, size), pieces, "{answer} in parts of {size}");
            }
        }
    }

    #[test]
    fn arguments_are_sent_as_they_come() {
        let mut answer = AnswerParser::new(Calls::Maybe, false);
        let mut sent = Vec::new();
        for part in
            ["<tool_call>{\"name\": \"f\", \"argu", "ments\": {\"x\": ", "\"a}", "b\"}", "}</tool_call>"]
        {
            answer.push(part);
            sent.push(answer.take());
        }
        let more = |arguments: &str| {
            AnswerPart::Call(CallPart { index: 0, name: None, arguments: arguments.into() })
        };
        let expected =
            [vec![], vec![call(0, "f", "{\"x\": ")], vec![more("\"a}")], vec![more("b\"}")], vec![]];
        assert_eq!(sent, expected);
    }

    #[test]
    fn calls_that_are_cut_off_are_calls() {
        let written = "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}";
        for cut in written.find(',').unwrap()..written.len() {
            let arguments = written[..cut].split_once("arguments\": ").map_or("", |(_, arguments)| arguments);
            let arguments =
                arguments.strip_suffix("}}").map_or(arguments.to_owned(), |inner| format!("{inner}}}"));
            assert_eq!(parse(&written[..cut], Calls::Always, 3), [call(0, "f", &arguments)], "{cut}");
            let tagged = format!("<tool_call>{}", &written[..cut]);
            assert_eq!(parse(&tagged, Calls::Maybe, 3), [call(0, "f", &arguments)], "{cut}");
        }
    }

    #[test]
    fn without_tools_everything_is_text() {
        let answer = "<tool_call>{\"name\":\"f\"}</tool_call>";
        assert_eq!(parse(answer, Calls::Never, 3), [text(answer)]);
        assert_eq!(parse(" {\"a\"", Calls::Never, 2), [text(" {\"a\"")]);
    }

    #[test]
    fn a_forced_call_comes_without_tags() {
        let answer = "{\"name\": \"f\", \"arguments\": {}}";
        assert_eq!(parse(answer, Calls::Always, 4), [call(0, "f", "{}")]);
        assert_eq!(parse("{\"na", Calls::Always, 4), [text("{\"na")]);
    }

    #[test]
    fn a_thought_may_begin_in_the_prompt() {
        assert!(is_thought_begun("<|assistant|><think>\n") && !is_thought_begun("<think>a"));
        let mut answer = AnswerParser::new(Calls::Never, true);
        answer.push("a</think>b");
        assert_eq!(answer.take(), [AnswerPart::Thought("a".into()), text("b")]);
    }
}
