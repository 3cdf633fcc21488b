//! Arguments of calls as models write them: cut off, or with values that JSON has not.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// A position in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Nesting {
    depth: u32,
    /// Whether the position is within a string.
    pub(super) is_text: bool,
    is_escaped: bool,
}

impl Nesting {
    /// Moves past one byte; returns true if the byte closes the outermost bracket.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_text => self.is_escaped = true,
            b'"' => self.is_text = !self.is_text,
            _ if self.is_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// The arguments of a call as an object. If some are cut off or invalid (numbers such as 1e999, hundreds of nested
/// lists), the object has only the fields before them. Half of a surrogate pair becomes U+FFFD. O(bytes).
#[must_use]
pub fn readable(arguments: &str) -> Map<String, Value> {
    let text = whole_characters(arguments);
    serde_json::from_str(&text).or_else(|_| serde_json::from_str(&closed(&text))).unwrap_or_default()
}

/// The longest readable beginning of a JSON object, closed where it ends.
fn closed(text: &str) -> String {
    // Where the text may end, and the brackets that are open there.
    let mut ends = vec![(text.find('{').map_or(0, |at| at + 1), "}".to_owned())];
    let mut brackets = Vec::new();
    let mut nesting = Nesting::default();
    for (at, byte) in text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii()) {
        let was_text = nesting.is_text;
        nesting.step(byte);
        match byte {
            _ if was_text => {}
            b'{' => brackets.push('}'),
            b'[' => brackets.push(']'),
            b'}' | b']' => drop(brackets.pop()),
            // A whole value stands before it.
            b',' => ends.push((at, brackets.iter().rev().collect())),
            _ => {}
        }
    }
    ends.push((text.len(), brackets.iter().rev().collect()));
    let close = |(at, rest): &(usize, String)| format!("{}{rest}", &text[..*at]);
    // A beginning that cannot be read makes all longer ones unreadable.
    let read = ends.partition_point(|end| serde_json::from_str::<Map<String, Value>>(&close(end)).is_ok());
    ends[..read].last().map(close).unwrap_or_default()
}

/// Replaces each half of a surrogate pair by U+FFFD. JavaScript leaves such halves where it cuts a text, and
/// serde_json refuses them.
#[must_use]
pub fn whole_characters(json: &str) -> Cow<'_, str> {
    let is_half = |escape: &[u8], first: u8| {
        escape.len() >= 6
            && escape.starts_with(b"\\u")
            && escape[2].eq_ignore_ascii_case(&b'd')
            && escape[3..6].iter().all(u8::is_ascii_hexdigit)
            && matches!(
                (first, escape[3].to_ascii_lowercase()),
                (b'h', b'8' | b'9' | b'a' | b'b') | (b'l', b'c'..=b'f')
            )
    };
    let bytes = json.as_bytes();
    let (mut whole, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(next) = json[at..].find('\\') {
        at += next;
        let rest = &bytes[at..];
        if is_half(rest, b'h') && is_half(&rest[6..], b'l') {
            at += 12;
        } else if is_half(rest, b'h') || is_half(rest, b'l') {
            whole.push_str(&json[copied..at]);
            whole.push_str("\\ufffd");
            at += 6;
            copied = at;
        } else {
            // The next character is escaped, and may be of several bytes.
            at += 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8);
        }
    }
    if copied == 0 { Cow::Borrowed(json) } else { Cow::Owned(whole + &json[copied..]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_characters_are_replaced() {
        let whole = |json: &str| serde_json::from_str::<String>(&whole_characters(json)).unwrap();
        assert_eq!(whole(r#""a\ud83d\ude00b""#), "a\u{1f600}b");
        assert_eq!(whole(r#""\uD83D""#), "\u{fffd}");
        assert_eq!(whole(r#""\ude00\ud83d!\ud83dx""#), "\u{fffd}\u{fffd}!\u{fffd}x");
        assert_eq!(whole(r#""\\ud83d \"\ud83d""#), "\\ud83d \"\u{fffd}");
        assert!(matches!(whole_characters(r#""\u00e4 é""#), Cow::Borrowed(_)));
    }

    #[test]
    fn arguments_are_readable_as_far_as_json_has_values_for_them() {
        let read = |arguments: &str| Value::from(readable(arguments)).to_string();
        assert_eq!(read(r#"{"x": {"y": [1, "}"]}}"#), r#"{"x":{"y":[1,"}"]}}"#);
        assert_eq!(read(r#"{"x": 1, "y": 1e999}"#), r#"{"x":1}"#);
        assert_eq!(read(r#"{"x": "\ud800", "y": -1e400}"#), "{\"x\":\"\u{fffd}\"}");
        assert_eq!(read(r#"{"x": [1, {"y": 2}, 3, "cut o"#), r#"{"x":[1,{"y":2},3]}"#);
        assert_eq!(read(&format!(r#"{{"x": 1, "y": {}"#, "[".repeat(200))), r#"{"x":1}"#);
        for nothing in ["", "{", "{\"x", "{\"x\": 1e999}", "\u{e4}", "[1]"] {
            assert_eq!(read(nothing), "{}", "{nothing}");
        }
    }
}
