//! A line on stderr that tells what is going on, where that is a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Time that something may take before a word about it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Interval at which a thread looks.
const LOOKS: Duration = Duration::from_millis(100);

/// A line that comes when there is something to tell, and goes with it. Ends when it is dropped.
#[derive(Debug)]
pub struct StatusLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<AtomicBool>,
}

impl StatusLine {
    /// A line above others, of what `line` returns; a thread asks it ten times a second.
    #[must_use]
    pub fn among(
        bars: &MultiProgress,
        mut line: impl FnMut(Instant) -> Option<String> + Send + 'static,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let bar = bars.insert(0, ProgressBar::no_length());
        let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
        let shown = Arc::new(AtomicBool::new(false));
        let shows = Arc::clone(&shown);
        let watch = move || {
            let bar = bar.with_style(style);
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOKS) {
                match line(Instant::now()) {
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
        let thread = thread::Builder::new().name("status line".into()).spawn(watch).ok();
        Self { stop: Some(stop), thread, shown }
    }

    /// Whether there was something to tell so far.
    #[must_use]
    pub fn has_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Time since which something goes on.
#[derive(Debug, Default)]
pub struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Whether something that goes on, or does not, has taken long enough for a word about it.
    pub fn is_over(&mut self, goes_on: bool, now: Instant) -> bool {
        self.since = goes_on.then(|| self.since.unwrap_or(now));
        self.since.is_some_and(|since| now - since >= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_comes_after_half_a_second() {
        let (begun, mut patience) = (Instant::now(), Patience::default());
        let mut over = |goes_on, ms| patience.is_over(goes_on, begun + Duration::from_millis(ms));
        assert!(!over(true, 0) && !over(true, 499) && over(true, 500) && over(true, 900));
        // What follows has a time of its own.
        assert!(!over(false, 1000) && !over(true, 1100) && !over(true, 1599) && over(true, 1600));
    }
}
