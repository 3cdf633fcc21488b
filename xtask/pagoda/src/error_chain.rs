//! An error and its causes as one line of text.

use std::error::Error;

/// The error and its causes, joined by `: `. A cause is skipped if its text is already included: library errors often end
/// with the text of their cause, and also return it as their source.
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
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_cause_is_printed_once() {
        let cause = Link("no such file", None);
        let reading = Link("cannot read a.gguf: no such file", Some(Box::new(cause)));
        let error = Link("model a.gguf", Some(Box::new(reading)));
        assert_eq!(joined(&error), "model a.gguf: cannot read a.gguf: no such file");
    }
}
