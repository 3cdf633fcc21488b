//! Ctrl-C in a chat: it ends the answer, and where there is none the program.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

use crate::interrupt::EXIT_INTERRUPTED;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const ASKED: u8 = 2;

/// Whether an answer is being written, and whether it should end. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicU8>);

impl Stop {
    /// Listens for Ctrl-C from now on. The program ends with the second one in a step.
    ///
    /// # Errors
    /// If the process already has a listener.
    pub(super) fn listen() -> Result<Self> {
        let stop = Self::default();
        let listener = stop.clone();
        ctrlc::set_handler(move || {
            if !listener.ask() {
                process::exit(EXIT_INTERRUPTED.into());
            }
        })
        .context("Ctrl-C cannot be listened for")?;
        Ok(stop)
    }

    /// Begins an answer.
    pub(super) fn begin(&self) {
        self.0.store(ANSWERING, Ordering::Relaxed);
    }

    /// Ends it.
    pub(super) fn end(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Whether the answer should end.
    pub(super) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ASKED
    }

    /// Asks for the end of the answer; false if there is none, or it has been asked before.
    fn ask(&self) -> bool {
        self.0.compare_exchange(ANSWERING, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_ends_one_answer() {
        let stop = Stop::default();
        assert!(!stop.ask() && !stop.asked());
        stop.begin();
        assert!(!stop.asked());
        assert!(stop.ask() && stop.asked() && !stop.ask());
        stop.end();
        stop.begin();
        assert!(!stop.asked() && stop.ask());
    }
}
