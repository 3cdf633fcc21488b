//! Ctrl-C in a chat: it ends the answer, and where there is none the program.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use attn_kernels::gpu::Gpu;

use crate::interrupt::{end_at_once, end_while_compiling, watch_compilation};

const IDLE: u8 = 0;
/// The first answer: the chat holds nothing but its question.
const ANSWERING_FIRST: u8 = 1;
const ANSWERING: u8 = 2;
const ASKED_FIRST: u8 = 3;
const ASKED: u8 = 4;

/// Whether an answer is being written, and whether it should end. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicU8>);

impl Stop {
    /// Listens for Ctrl-C from now on. The program ends with the second one in a step, and with the first one if the first answer
    /// waits for kernels of `gpu` that are compiled for long.
    ///
    /// # Errors
    /// If the process already has a listener.
    pub(super) fn listen(gpu: &Arc<Gpu>) -> Result<Self> {
        let stop = Self::default();
        let (listener, gpu) = (stop.clone(), Arc::downgrade(gpu));
        ctrlc::set_handler(move || {
            if !listener.ask() {
                end_at_once();
            }
            listener.bound_compilation(&gpu);
        })
        .context("Ctrl-C cannot be listened for")?;
        Ok(stop)
    }

    /// Says what an answer waits for, if kernels are compiled for long; if no conversation is lost by it, ends the program.
    fn bound_compilation(&self, gpu: &Weak<Gpu>) {
        let (over, late) = (self.clone(), self.clone());
        let late = move || match late.0.load(Ordering::Relaxed) {
            ASKED_FIRST => end_while_compiling(),
            ASKED => eprintln!(
                "\nthe answer ends when its kernels are compiled; Ctrl-C again ends the chat, and what was not saved is lost"
            ),
            _ => {}
        };
        watch_compilation(gpu.clone(), move || !over.asked(), late);
    }

    /// Begins an answer, the `first` one of a chat or another.
    pub(super) fn begin(&self, first: bool) {
        self.0.store(if first { ANSWERING_FIRST } else { ANSWERING }, Ordering::Relaxed);
    }

    /// Ends it.
    pub(super) fn end(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Whether the answer should end.
    pub(super) fn asked(&self) -> bool {
        [ASKED_FIRST, ASKED].contains(&self.0.load(Ordering::Relaxed))
    }

    /// Asks for the end of the answer; false if there is none, or it has been asked before.
    fn ask(&self) -> bool {
        let asked = |state| match state {
            ANSWERING_FIRST => Some(ASKED_FIRST),
            ANSWERING => Some(ASKED),
            _ => None,
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, asked).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_ends_one_answer() {
        let stop = Stop::default();
        assert!(!stop.ask() && !stop.asked());
        for first in [true, false] {
            stop.begin(first);
            assert!(!stop.asked());
            assert!(stop.ask() && stop.asked() && !stop.ask());
            stop.end();
        }
        stop.begin(false);
        assert!(!stop.asked() && stop.ask());
    }
}
