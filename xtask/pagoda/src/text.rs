//! Text of one sample as it grows: decoded token by token, ended at a stop text.

use anyhow::Result;
use models::{DecodeStream, Tokenizer};

/// Decoded text and the stop texts that end it.
pub struct Text<'a> {
    stream: DecodeStream<'a>,
    stops: &'a [String],
    text: String,
    /// Bytes already returned; what may still become a stop text is held back.
    shown: usize,
    stopped: bool,
}

impl<'a> Text<'a> {
    /// Empty text.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, stops: &'a [String]) -> Self {
        Self { stream: tokenizer.stream(true), stops, text: String::new(), shown: 0, stopped: false }
    }

    /// Takes the next token; returns what can be printed now, and whether a stop text ended the sample.
    ///
    /// # Errors
    /// If the tokenizer does not know the token.
    pub fn push(&mut self, id: u32) -> Result<(String, bool)> {
        let piece = self.stream.push(id)?;
        self.text.push_str(&piece);
        if let Some(at) = first_stop(&self.text[self.shown..], self.stops) {
            self.text.truncate(self.shown + at);
            self.stopped = true;
        }
        let held = if self.stopped { 0 } else { held_back(&self.text[self.shown..], self.stops) };
        let end = self.text.len() - held;
        let piece = self.text[self.shown..end].to_owned();
        self.shown = end;
        Ok((piece, self.stopped))
    }

    /// Ends the sample: returns the whole text, and the part of it that was not returned before.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn finish(mut self) -> Result<(String, String)> {
        if !self.stopped {
            self.text.push_str(&self.stream.finish()?);
        }
        let rest = self.text[self.shown..].to_owned();
        Ok((self.text, rest))
    }
}

/// Where the first stop text begins.
fn first_stop(text: &str, stops: &[String]) -> Option<usize> {
    stops.iter().filter_map(|stop| text.find(stop.as_str())).min()
}

/// Number of bytes at the end of `text` that may be the beginning of a stop text.
fn held_back(text: &str, stops: &[String]) -> usize {
    let begins = |tail: &str| stops.iter().any(|stop| stop.len() > tail.len() && stop.starts_with(tail));
    text.char_indices().map(|(at, _)| &text[at..]).find(|tail| begins(tail)).map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_stop_wins() {
        let stops = ["ab".to_string(), "b".to_string()];
        assert_eq!(first_stop("xxab", &stops), Some(2));
        assert_eq!(first_stop("xxa", &stops), None);
    }

    #[test]
    fn what_may_become_a_stop_is_held_back() {
        let stops = ["\n\nQ:".to_string(), "END".to_string()];
        assert_eq!(held_back("text\n", &stops), 1);
        assert_eq!(held_back("text\n\nQ", &stops), 3);
        assert_eq!(held_back("text\nQ", &stops), 0);
        assert_eq!(held_back("é E", &stops), 1);
        assert_eq!(held_back("EN", &stops), 2);
        assert_eq!(held_back("", &stops), 0);
    }
}
