//! Text of a sequence as it grows: decoded token by token, ended at a stop text.

use std::sync::Arc;

use models::{DecodeStream, Tokenizer, TokenizerError};

/// Decodes the tokens of one sequence and finds the stop text that ends it. The pieces are whole characters
/// and hold nothing of a stop text; joined, they are the text of all tokens before the stop.
#[derive(Debug)]
pub struct Text {
    stream: DecodeStream<Arc<Tokenizer>>,
    stops: Vec<String>,
    /// Text that is held back, because a stop text may begin in it.
    held: String,
    stopped: bool,
}

/// Text that a token adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that can no longer change.
    pub text: String,
    /// Index of the stop text that ended the sequence.
    pub stop: Option<usize>,
}

impl Text {
    /// An empty text that ends at any of `stops`.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>, skip_special: bool) -> Self {
        let stream = DecodeStream::new(tokenizer, skip_special);
        Self { stream, stops, held: String::new(), stopped: false }
    }

    /// Takes the next token. After a stop text, nothing is certain any more: all pieces are empty.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the token.
    pub fn push(&mut self, id: u32) -> Result<Piece, TokenizerError> {
        if self.stopped {
            return Ok(Piece { text: String::new(), stop: None });
        }
        let piece = self.stream.push(id)?;
        self.held.push_str(&piece);
        if let Some((at, stop)) = first_stop(&self.held, &self.stops) {
            self.stopped = true;
            self.held.truncate(at);
            return Ok(Piece { text: std::mem::take(&mut self.held), stop: Some(stop) });
        }
        let certain = self.held.len() - held_back(&self.held, &self.stops);
        let rest = self.held.split_off(certain);
        Ok(Piece { text: std::mem::replace(&mut self.held, rest), stop: None })
    }

    /// Ends the text and returns the text that was held back.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn finish(self) -> Result<String, TokenizerError> {
        if self.stopped { Ok(String::new()) } else { Ok(self.held + &self.stream.finish()?) }
    }
}

/// Returns the position of the first stop text, and its index.
fn first_stop(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    let found = |(index, stop): (usize, &String)| Some((text.find(stop.as_str())?, index));
    stops.iter().enumerate().filter_map(found).min()
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
        assert_eq!(first_stop("xxab", &stops), Some((2, 0)));
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
