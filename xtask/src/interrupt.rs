//! Ctrl-C: the first asks the running command to finish its step and report what it has, the second ends the
//! process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Exit code of a process that Ctrl-C ended: 128 + SIGINT, as shells count it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The end of a command that Ctrl-C stopped, once it has reported what it had.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Tells whether Ctrl-C was pressed. Clones share one answer.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for Ctrl-C from now on.
    ///
    /// # Errors
    ///
    /// A process has one listener: a second call fails.
    pub fn listen() -> Result<Self> {
        let interrupt = Self::default();
        let listener = interrupt.clone();
        ctrlc::set_handler(move || {
            if listener.request() {
                std::process::exit(EXIT_INTERRUPTED.into());
            }
            eprintln!("\nstopping after this step; press Ctrl-C again to stop at once");
        })
        .context("Ctrl-C cannot be listened for")?;
        Ok(interrupt)
    }

    /// Whether the command should stop. Loops ask between two steps.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// The end of a command that has reported what it had: an error where it was asked to stop.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn end(&self) -> Result<(), Interrupted> {
        if self.requested() { Err(Interrupted) } else { Ok(()) }
    }

    /// Asks the command to stop; true where that had been asked before.
    pub fn request(&self) -> bool {
        self.requested.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_request_is_new() {
        let interrupt = Interrupt::default();
        let polled = interrupt.clone();
        assert!(!polled.requested() && polled.end().is_ok());
        assert!(!interrupt.request());
        assert!(polled.requested() && polled.end().is_err());
        assert!(interrupt.request());
    }
}
