//! Arguments of calls as models write them: cut off, or with values that JSON has not.

use serde_json::{Map, Value};

use crate::fields::whole_characters;

/// A position in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Nesting {
    depth: u32,
    /// Whether it is within a text.
    pub(crate) is_text: bool,
    is_escaped: bool,
}

impl Nesting {
    /// Goes on by a byte; true if it closes the outermost bracket.
    pub(crate) fn step(&mut self, byte: u8) -> bool {
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

/// The arguments of a call as an object. Of arguments that are cut off, or that have what no JSON value has (numbers such as
/// 1e999, hundreds of nested lists), the fields before that; half a surrogate pair is U+FFFD. O(bytes).
pub(crate) fn readable(arguments: &str) -> Map<String, Value> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
