//! The terminal during an answer: what is typed then is not shown among its words, and begins the next line.

#[cfg(not(unix))]
pub(super) use self::nothing::Typed;
#[cfg(unix)]
pub(super) use self::unix::Typed;

#[cfg(unix)]
mod unix {
    use std::io;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

    use super::line;

    /// Modes of the terminal of standard input before an answer. Clones share their state.
    #[derive(Debug, Clone, Default)]
    pub(in crate::chat) struct Typed(Arc<Mutex<Option<Termios>>>);

    impl Typed {
        /// Hides what is typed from now on, if standard input is a terminal.
        pub(in crate::chat) fn hide(&self) {
            let Ok(before) = tcgetattr(io::stdin()) else { return };
            let mut hidden = before.clone();
            hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            // A read returns what there is.
            hidden.special_codes[SpecialCodeIndex::VMIN] = 0;
            hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
            if tcsetattr(io::stdin(), OptionalActions::Drain, &hidden).is_ok() {
                *self.before() = Some(before);
            }
        }

        /// Shows what is typed again. Returns what was typed in the meantime: one line, without keys that write nothing.
        pub(in crate::chat) fn show(&self) -> String {
            let mut typed = Vec::new();
            let mut bytes = [0; 1024];
            if self.before().is_some() {
                while let Ok(count @ 1..) = rustix::io::read(io::stdin(), &mut bytes) {
                    typed.extend_from_slice(&bytes[..count]);
                }
            }
            self.restore();
            line(&String::from_utf8_lossy(&typed))
        }

        /// Gives the terminal its modes back.
        pub(in crate::chat) fn restore(&self) {
            if let Some(before) = self.before().take() {
                // A terminal that is gone has no modes.
                let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &before);
            }
        }

        fn before(&self) -> MutexGuard<'_, Option<Termios>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(not(unix))]
mod nothing {
    /// A terminal that shows what is typed.
    #[derive(Debug, Clone, Default)]
    pub(in crate::chat) struct Typed;

    #[expect(clippy::unused_self, reason = "elsewhere there is a terminal")]
    impl Typed {
        pub(in crate::chat) fn hide(&self) {}

        pub(in crate::chat) fn show(&self) -> String {
            String::new()
        }

        pub(in crate::chat) fn restore(&self) {}
    }
}

/// The letters of typed keys: a line break becomes a space, a key to the left takes a letter back, and other keys are left
/// out with the codes that they send.
#[cfg(unix)]
fn line(typed: &str) -> String {
    let mut line = String::new();
    let mut keys = typed.chars().peekable();
    while let Some(key) = keys.next() {
        match key {
            '\r' | '\n' => line.push(' '),
            '\u{7f}' | '\u{8}' => drop(line.pop()),
            '\u{1b}' => {
                keys.next_if(|key| ['[', 'O'].contains(key));
                while keys.next_if(|key| key.is_ascii_digit() || ";~".contains(*key)).is_some() {}
                keys.next_if(char::is_ascii_uppercase);
            }
            key if key.is_control() => {}
            key => line.push(key),
        }
    }
    line.trim().to_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn keys_become_a_line() {
        assert_eq!(line("Why so\rlong?"), "Why so long?");
        assert_eq!(line("abd\u{7f}c\u{1b}[A\u{1b}[3~\u{1b}OP ü\t"), "abc ü");
        assert_eq!(line("\r"), "");
    }
}
