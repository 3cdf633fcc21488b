//! An error and its causes as one line of text.

use std::error::Error;

/// The error and its causes, joined by `: `. A cause whose text is already there is left out: library errors often
/// end with the text of their cause, and also return it as their source.
#[must_use]
pub fn joined(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_printed_once() {
        let error =
            anyhow!("no such file").context("cannot read a.gguf: no such file").context("model a.gguf");
        assert_eq!(joined(error.as_ref()), "model a.gguf: cannot read a.gguf: no such file");
    }
}
