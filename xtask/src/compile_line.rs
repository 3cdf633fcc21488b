//! Progress of the compilation of kernels, on stderr where that is a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use attn_kernels::gpu::{Compilation, Gpu};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Time that kernels may take before a word about it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Interval at which a thread looks.
const LOOKS: Duration = Duration::from_millis(100);

/// A line that comes where kernels are compiled for more than half a second, and goes with them. Ends when it is dropped.
#[derive(Debug)]
pub struct CompileLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<AtomicBool>,
}

impl CompileLine {
    /// A line about the kernels of a device, unless nothing is to be told.
    #[must_use]
    pub fn unless(quiet: bool, gpu: &Arc<Gpu>) -> Option<Self> {
        (!quiet).then(|| Self::among(&MultiProgress::new(), gpu))
    }

    /// A line above others.
    #[must_use]
    pub fn among(bars: &MultiProgress, gpu: &Arc<Gpu>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let (bar, gpu) = (bars.insert(0, ProgressBar::no_length()), Arc::clone(gpu));
        let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
        let shown = Arc::new(AtomicBool::new(false));
        let shows = Arc::clone(&shown);
        let watch = move || {
            let (bar, mut patience) = (bar.with_style(style), Patience::default());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOKS) {
                match patience.line(gpu.compilation(), Instant::now()) {
                    Some(line) => {
                        if bar.is_finished() {
                            bar.reset();
                        }
                        bar.set_message(line);
                        shows.store(true, Ordering::Relaxed);
                    }
                    None => bar.finish_and_clear(),
                }
            }
            bar.finish_and_clear();
        };
        // Without a thread there is no line: nothing hangs on it.
        let thread = thread::Builder::new().name("compile line".into()).spawn(watch).ok();
        Self { stop: Some(stop), thread, shown }
    }

    /// Whether there was something to tell so far: kernels that no cache had.
    #[must_use]
    pub fn has_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }
}

impl Drop for CompileLine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Time since which kernels are compiled.
#[derive(Debug, Default)]
struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// The line to show, if it is time for one.
    fn line(&mut self, kernels: Compilation, now: Instant) -> Option<String> {
        if !kernels.is_running() {
            self.since = None;
            return None;
        }
        let long = now - *self.since.get_or_insert(now) >= PATIENCE;
        long.then(|| format!("compiling kernels {} of {}", kernels.ready, kernels.asked))
    }
}

#[cfg(test)]
mod tests {
    use attn_kernels::gpu::{Checks, GpuOptions};

    use super::*;

    #[test]
    fn the_line_comes_after_half_a_second_and_goes() {
        let (begun, mut patience) = (Instant::now(), Patience::default());
        let mut line = |ready, asked, ms| {
            patience.line(Compilation { ready, asked }, begun + Duration::from_millis(ms)).unwrap_or_default()
        };
        assert_eq!(line(0, 0, 0), "");
        assert_eq!(line(0, 90, 100), "");
        assert_eq!(line(20, 90, 599), "");
        assert_eq!(line(37, 120, 600), "compiling kernels 37 of 120");
        assert_eq!(line(38, 120, 700), "compiling kernels 38 of 120");
        assert_eq!(line(120, 120, 800), "");
        // Those that follow have a time of their own.
        assert_eq!(line(120, 121, 1000), "");
        assert_eq!(line(120, 121, 1500), "compiling kernels 120 of 121");
    }

    #[test]
    fn it_ends_with_its_owner() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::Off)).expect("GPU tests need an adapter");
        let gpu = Arc::new(gpu);
        drop(CompileLine::unless(false, &gpu));
        assert_eq!(Arc::strong_count(&gpu), 1);
        assert!(CompileLine::unless(true, &gpu).is_none());
    }
}
