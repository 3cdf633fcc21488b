//! Ctrl-C, and the signals by which systems end processes: the first one asks the running command to finish its step and
//! report what it has; the second one ends the process at once. In a chat, it ends the answer or, if there is none, the
//! program.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use attn_kernels::gpu::Gpu;
#[cfg(unix)]
use signal_hook::{consts, flag};

/// Exit code of a process that Ctrl-C ended: 128 + SIGINT, by the convention of shells.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The error of a command that a signal stopped. The command has reported its results so far.
#[derive(Debug)]
pub struct Interrupted {
    /// Exit code of the process.
    pub code: u8,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Time for which a command that was asked to stop may go on compiling kernels: software drivers take far longer.
const COMPILE_PATIENCE: Duration = Duration::from_millis(1200);

/// Interval at which a thread checks whether kernels are being compiled.
const LOOKS: Duration = Duration::from_millis(100);

/// Whether Ctrl-C was pressed. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
    /// Whether the command has noticed the interrupt.
    seen: Arc<AtomicBool>,
    /// The device whose kernels the command may be waiting for.
    gpu: Arc<OnceLock<Weak<Gpu>>>,
}

impl Interrupt {
    /// Listens for Ctrl-C, and on Unix for SIGTERM and SIGHUP, from now on.
    ///
    /// # Errors
    ///
    /// If the process already has a listener.
    pub fn listen() -> Result<Self> {
        let interrupt = Self::default();
        let listener = interrupt.clone();
        ctrlc::set_handler(move || {
            if listener.request() {
                end_at_once();
            }
            eprintln!("\nstopping after this step; press Ctrl-C again to stop at once");
            listener.bound_compilation();
        })
        .context("Ctrl-C cannot be listened for")?;
        #[cfg(unix)]
        interrupt.listen_to_termination().context("SIGTERM cannot be listened for")?;
        Ok(interrupt)
    }

    /// Treats the signals by which systems end processes like Ctrl-C.
    #[cfg(unix)]
    fn listen_to_termination(&self) -> std::io::Result<()> {
        for signal in [consts::SIGTERM, consts::SIGHUP] {
            // Handlers run in the order of their registration: the second signal finds what the first has left.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&self.requested))?;
            flag::register(signal, Arc::clone(&self.requested))?;
        }
        Ok(())
    }

    /// Lets Ctrl-C end the process if the current step spends too long on compiling kernels of `gpu`.
    pub fn bound_compilation_of(&self, gpu: &Arc<Gpu>) {
        // The first one is kept: a command has one device.
        let _ = self.gpu.set(Arc::downgrade(gpu));
    }

    /// Ends the process if the current step goes on compiling. Only the report is lost: tiers are complete at any time.
    fn bound_compilation(&self) {
        let Some(gpu) = self.gpu.get().cloned() else { return };
        let seen = Arc::clone(&self.seen);
        watch_compilation(gpu, move || seen.load(Ordering::Relaxed), end_while_compiling);
    }

    /// Whether the command should stop. Loops check this between two steps.
    pub fn requested(&self) -> bool {
        let requested = self.requested.load(Ordering::Relaxed);
        self.seen.fetch_or(requested, Ordering::Relaxed);
        requested
    }

    /// Fails if the command was asked to stop. A command calls this after it has reported its results so far.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn end(&self) -> Result<(), Interrupted> {
        if self.requested() { Err(Interrupted { code: EXIT_INTERRUPTED }) } else { Ok(()) }
    }

    /// Asks the command to stop; true if it had been asked before.
    pub fn request(&self) -> bool {
        self.requested.swap(true, Ordering::Relaxed)
    }
}

/// The last signal that told the process to end, for a process in which other code handles the signal.
#[derive(Debug, Clone, Default)]
pub struct LastSignal(Arc<AtomicUsize>);

impl LastSignal {
    /// Listens from now on for SIGTERM and Ctrl-C, which something else must answer already: they no longer end the process by
    /// themselves.
    pub fn listen(&self) {
        #[cfg(unix)]
        for signal in [consts::SIGTERM, consts::SIGINT] {
            let number = usize::try_from(signal).expect("signals are above 0");
            // Where the system refuses it, the exit code is that of Ctrl-C.
            let _ = flag::register_usize(signal, Arc::clone(&self.0), number);
        }
    }

    /// The error of a command that the signal ended: its code is 128 and the signal's number, by the convention of shells.
    #[must_use]
    pub fn interrupted(&self) -> Interrupted {
        let signal = u8::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0);
        Interrupted { code: if signal == 0 { EXIT_INTERRUPTED } else { 128 | signal } }
    }
}

const IDLE: u8 = 0;
/// State while the first answer of a chat is generated: ending the program loses no conversation.
const ANSWERING_FIRST: u8 = 1;
const ANSWERING: u8 = 2;
const ASKED_FIRST: u8 = 3;
const ASKED: u8 = 4;

/// Ctrl-C in a chat: whether an answer is being written, and whether it should end. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicU8>);

impl Stop {
    /// Listens for Ctrl-C from now on. The second Ctrl-C in a step ends the program. So does the first one if the
    /// first answer waits too long for kernels of `gpu` to compile. Before such an end, `leave` is called.
    ///
    /// # Errors
    /// If the process already has a listener.
    pub(crate) fn listen(gpu: &Arc<Gpu>, leave: impl Fn() + Clone + Send + 'static) -> Result<Self> {
        let stop = Self::default();
        let (listener, gpu) = (stop.clone(), Arc::downgrade(gpu));
        ctrlc::set_handler(move || {
            if !listener.ask() {
                leave();
                end_at_once();
            }
            listener.bound_compilation(&gpu, leave.clone());
        })
        .context("Ctrl-C cannot be listened for")?;
        Ok(stop)
    }

    /// If kernels are compiled for too long, says that the answer waits for them, or ends the program if no
    /// conversation is lost by that.
    fn bound_compilation(&self, gpu: &Weak<Gpu>, leave: impl FnOnce() + Send + 'static) {
        let (over, late) = (self.clone(), self.clone());
        let late = move || match late.0.load(Ordering::Relaxed) {
            ASKED_FIRST => {
                leave();
                end_while_compiling();
            }
            ASKED => eprintln!(
                "\nthe answer ends when its kernels are compiled; Ctrl-C again ends the chat, and what was not saved is lost"
            ),
            _ => {}
        };
        watch_compilation(gpu.clone(), move || !over.asked(), late);
    }

    /// Begins an answer; `first` says whether it is the first one of a chat.
    pub(crate) fn begin(&self, first: bool) {
        self.0.store(if first { ANSWERING_FIRST } else { ANSWERING }, Ordering::Relaxed);
    }

    /// Ends the answer.
    pub(crate) fn end(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    /// Whether the answer should end.
    pub(crate) fn asked(&self) -> bool {
        [ASKED_FIRST, ASKED].contains(&self.0.load(Ordering::Relaxed))
    }

    /// Asks for the end of the answer. Returns false if no answer is being generated, or its end was already requested.
    fn ask(&self) -> bool {
        let asked = |state| match state {
            ANSWERING_FIRST => Some(ASKED_FIRST),
            ANSWERING => Some(ASKED),
            _ => None,
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, asked).is_ok()
    }
}

/// Calls `late` once kernels of `gpu` have been compiling for longer than a command that was asked to stop may wait.
/// Checks this on a thread of its own until `is_over` returns true.
fn watch_compilation(
    gpu: Weak<Gpu>,
    is_over: impl Fn() -> bool + Send + 'static,
    late: impl FnOnce() + Send + 'static,
) {
    let wait = move || {
        let mut since: Option<Instant> = None;
        while !is_over() {
            let compiles = gpu.upgrade().is_some_and(|gpu| gpu.compilation().is_running());
            since = compiles.then(|| since.unwrap_or_else(Instant::now));
            if since.is_some_and(|since| since.elapsed() >= COMPILE_PATIENCE) {
                return late();
            }
            thread::sleep(LOOKS);
        }
    };
    // Without a thread the second Ctrl-C is left.
    drop(thread::Builder::new().name("interrupt".into()).spawn(wait));
}

/// Ends the process, and says why.
fn end_while_compiling() {
    eprintln!("stopped while kernels were compiled");
    end_at_once();
}

/// Ends the process without its exit handlers, which would unload a driver while the driver's threads compile.
fn end_at_once() -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(EXIT_INTERRUPTED.into());
    #[cfg(not(unix))]
    std::process::exit(EXIT_INTERRUPTED.into());
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
