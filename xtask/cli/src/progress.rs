//! Progress on stderr, if it is a terminal: lines about weights and kernels, and a bar of prompts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use attn_kernels::gpu::{Compilation, Gpu};
use indicatif::{BinaryBytes, HumanDuration, MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use pagoda::{Engine, Event, LoadProgress, Loaded};

/// Look of a bar or a line on stderr, as a template of `indicatif`.
#[derive(Debug, Clone, Copy)]
pub struct Template(&'static str);

impl Template {
    /// Bytes of what the message names.
    pub const BYTES: Self = Self("{msg} [{bar:40}] {bytes} of {total_bytes}");
    /// Bytes of the file that the message names, and the time that is left.
    pub const FILE: Self = Self("{msg} [{bar:40}] {bytes} of {total_bytes}, {eta} left");
    /// Done tests of all, and the name of the running one as the message.
    pub const TESTS: Self = Self("{msg} [{bar:40}] {pos} of {len}");
    /// Done rows of all, and the name of the running one as the message.
    pub const ROWS: Self = Self("[{bar:30}] {pos} of {len}: {msg}");
    /// Done cells of all, the time that is left, and the name of the running one as the message.
    pub const CELLS: Self = Self("[{bar:30}] {pos} of {len}, {eta} left: {msg}");
    /// A number of tokens, and the time that is left.
    pub const TOKENS: Self = Self("[{bar:30}] {pos} of {len} tokens, {eta} left");
    const PROMPTS: Self = Self("prompt [{bar:40}] {pos} of {len} tokens{left}");
    const LINE: Self = Self("{msg}");

    /// A bar of `len` steps; with `None`, the number of steps is set later.
    #[must_use]
    pub fn bar(self, len: Option<usize>) -> ProgressBar {
        let bar = len.map_or_else(ProgressBar::no_length, |len| ProgressBar::new(len as u64));
        bar.with_style(self.style())
    }

    fn style(self) -> ProgressStyle {
        let style = ProgressStyle::with_template(self.0).expect("the templates are valid");
        style.progress_chars("=> ").with_key("left", left)
    }
}

/// Time after which a running operation is reported.
const PATIENCE: Duration = Duration::from_millis(500);

/// Interval at which a thread looks.
const LOOKS: Duration = Duration::from_millis(100);

/// A line about work that takes more than half a second. It disappears when it is dropped.
#[derive(Debug)]
pub struct StatusLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<AtomicBool>,
}

impl StatusLine {
    /// Shows the text that `line` returns above other bars, while `line` returns any. A thread calls `line` ten times
    /// a second.
    #[must_use]
    pub fn among(
        bars: &MultiProgress,
        mut line: impl FnMut(Instant) -> Option<String> + Send + 'static,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let bar = bars.insert(0, ProgressBar::no_length());
        let shown = Arc::new(AtomicBool::new(false));
        let shows = Arc::clone(&shown);
        let watch = move || {
            let (bar, mut patience) = (bar.with_style(Template::LINE.style()), Patience::default());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOKS) {
                let now = Instant::now();
                let line = line(now);
                match (patience.is_over(line.is_some(), now), line) {
                    (true, Some(line)) => {
                        if bar.is_finished() {
                            bar.reset();
                        }
                        bar.set_message(line);
                        shows.store(true, Ordering::Relaxed);
                    }
                    _ => bar.finish_and_clear(),
                }
            }
            bar.finish_and_clear();
        };
        // Without a thread there is no line: nothing hangs on it.
        let thread = thread::Builder::new().name("status line".into()).spawn(watch).ok();
        Self { stop: Some(stop), thread, shown }
    }

    /// Whether anything was reported so far.
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

/// Time since the start of an operation that still runs.
#[derive(Debug, Default)]
struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Whether the operation has run long enough to be reported. `goes_on` says whether it still runs.
    fn is_over(&mut self, goes_on: bool, now: Instant) -> bool {
        self.since = goes_on.then(|| self.since.unwrap_or(now));
        self.since.is_some_and(|since| now - since >= PATIENCE)
    }
}

/// A line about the kernels of a device, if their compilation takes more than half a second.
#[must_use]
pub fn compile_line(bars: &MultiProgress, gpu: &Arc<Gpu>) -> StatusLine {
    let gpu = Arc::clone(gpu);
    StatusLine::among(bars, move |_| {
        Some(gpu.compilation()).filter(|kernels| kernels.is_running()).map(compiling)
    })
}

fn compiling(kernels: Compilation) -> String {
    format!("compiling kernels {} of {}", kernels.ready, kernels.asked)
}

/// Interval of the lines of a log, where stderr is no terminal.
const LOG: Duration = Duration::from_secs(10);

/// Interval between log lines with `--verbose` if stderr is no terminal.
const VERBOSE_LOG: Duration = Duration::from_secs(1);

/// A line about the weights that are loaded, if that takes more than half a second. If stderr is no terminal, a line every
/// ten seconds, or every second if `verbose`.
#[must_use]
pub fn load_line(bars: &MultiProgress, progress: &LoadProgress, verbose: bool) -> StatusLine {
    let (progress, mut rate) = (progress.clone(), Rate::default());
    let every = bars.is_hidden().then_some(if verbose { VERBOSE_LOG } else { LOG });
    StatusLine::among(bars, move |now| {
        let loaded = progress.loaded();
        let line = rate.see(loaded, now).then(|| rate.line(loaded, now))?;
        if every.is_some_and(|every| rate.is_due(every, now)) {
            eprintln!("{line}");
        }
        Some(line)
    })
}

/// A line while the whole checkpoint is read, if that takes more than half a second.
#[must_use]
pub fn reading_line() -> StatusLine {
    let line = "reading the checkpoint: KV that outlives a run is found by its contents";
    StatusLine::among(&MultiProgress::new(), move |_| Some(line.to_owned()))
}

/// Start of a measurement of the speed at which weights are loaded.
#[derive(Debug, Default)]
struct Rate {
    begun: Option<Instant>,
    /// Time of the last line of a log.
    logged: Option<Instant>,
}

impl Rate {
    /// Records whether weights are being loaded now, and returns it.
    fn see(&mut self, loaded: Loaded, now: Instant) -> bool {
        self.begun = loaded.is_running().then(|| self.begun.unwrap_or(now));
        self.begun.is_some()
    }

    /// Whether the next log line is due, if a line is logged at the interval `every`.
    fn is_due(&mut self, every: Duration, now: Instant) -> bool {
        let last = self.logged.max(self.begun).unwrap_or(now);
        let due = now.saturating_duration_since(last) >= every;
        if due {
            self.logged = Some(now);
        }
        due
    }

    fn line(&self, loaded: Loaded, now: Instant) -> String {
        let share = loaded.elements * 100 / loaded.total_elements.max(1);
        let seconds = self.begun.map_or(0.0, |begun| (now - begun).as_secs_f64()).max(1e-3);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes a second, to three digits"
        )]
        let rate = (loaded.bytes as f64 / seconds) as u64;
        format!("loading weights: {share} %, {} at {}/s", BinaryBytes(loaded.bytes), BinaryBytes(rate))
    }
}

/// A bar that shows how many tokens of the running prompts are computed, and how many are left. The bar is visible
/// only while a prompt is computed.
#[derive(Debug)]
pub struct PrefillBar {
    bar: ProgressBar,
    /// Status line about kernels that the first steps wait for; removed once text is printed.
    kernels: Option<StatusLine>,
    /// Whether the next step has to compile kernels that only decode needs.
    warms: bool,
    /// Events of earlier steps whose text is not printed yet.
    held: Vec<Event>,
    /// Whether each step is reported as a line instead of by the bar.
    told: bool,
}

impl PrefillBar {
    /// A bar for `engine`. It is hidden if `quiet`; if `verbose`, lines take its place.
    #[must_use]
    pub fn new(engine: &Engine, quiet: bool, verbose: bool) -> Self {
        let bars = MultiProgress::new();
        let bar = if quiet || verbose { ProgressBar::hidden() } else { bars.add(ProgressBar::no_length()) };
        let kernels = (!quiet).then(|| compile_line(&bars, engine.decoder().gpu()));
        Self {
            bar: bar.with_style(Template::PROMPTS.style()),
            kernels,
            warms: false,
            held: Vec::new(),
            told: verbose,
        }
    }

    /// Shows the progress of an engine's prompts after a step that gave `events`. Returns the events whose text may be
    /// printed.
    ///
    /// Text waits while the next step compiles kernels: otherwise it would mix with the line about them, or stop without a
    /// word after its first token.
    #[must_use]
    pub fn pass(&mut self, engine: &Engine, events: Vec<Event>) -> Vec<Event> {
        self.show(engine);
        self.held.extend(events);
        if self.warms && engine.has_work() { Vec::new() } else { std::mem::take(&mut self.held) }
    }

    fn show(&mut self, engine: &Engine) {
        let scheduler = engine.scheduler();
        let open = scheduler.running().iter().filter(|seq| scheduler.is_prefill(**seq) == Some(true));
        let tokens = open
            .filter_map(|seq| Some((scheduler.num_computed(*seq)?, scheduler.tokens(*seq)?.len() as u64)));
        let (done, all) = tokens.fold((0, 0), |sum, (done, all)| (sum.0 + u64::from(done), sum.1 + all));
        if all == 0 {
            self.bar.finish_and_clear();
            self.warms = !self.warms && self.kernels.as_ref().is_some_and(StatusLine::has_shown);
            if !self.warms {
                self.kernels = None;
            }
            return;
        }
        if self.bar.is_finished() {
            self.bar.reset();
        }
        self.bar.set_length(all);
        self.bar.set_position(done);
        if self.told {
            eprintln!("{done} of {all} prompt tokens computed, {} left", all - done);
        }
    }
}

/// Formats the remaining time, if a rate is known.
fn left(state: &ProgressState, to: &mut dyn fmt::Write) {
    if state.pos() > 0 {
        let _ = write!(to, ", {:#} left", HumanDuration(state.eta()));
    }
}

#[cfg(test)]
mod tests {
    use attn_kernels::gpu::{Checks, GpuOptions};

    use super::*;

    #[test]
    fn a_word_comes_after_half_a_second() {
        let (begun, mut patience) = (Instant::now(), Patience::default());
        let mut over = |goes_on, ms| patience.is_over(goes_on, begun + Duration::from_millis(ms));
        assert!(!over(true, 0) && !over(true, 499) && over(true, 500) && over(true, 900));
        // What follows has a time of its own.
        assert!(!over(false, 1000) && !over(true, 1100) && !over(true, 1599) && over(true, 1600));
    }

    #[test]
    fn a_line_ends_with_its_owner() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::Off)).expect("GPU tests need an adapter");
        let gpu = Arc::new(gpu);
        drop(compile_line(&MultiProgress::new(), &gpu));
        assert_eq!(Arc::strong_count(&gpu), 1);
        assert_eq!(compiling(Compilation { ready: 37, asked: 120 }), "compiling kernels 37 of 120");
    }

    #[test]
    fn lines_say_how_much_came_and_how_fast() {
        let (begun, mut rate) = (Instant::now(), Rate::default());
        let mut line = |bytes, elements, seconds| {
            let mut loaded = Loaded::default();
            (loaded.bytes, loaded.elements, loaded.total_elements) = (bytes, elements, 8_000_000_000);
            let now = begun + Duration::from_secs(seconds);
            rate.see(loaded, now);
            rate.line(loaded, now)
        };
        insta::assert_snapshot!([line(0, 0, 0), line(1 << 30, 500_000_000, 1), line(7 << 30, 3_500_000_000, 4)].join("\n"), @"
        loading weights: 0 %, 0 B at 0 B/s
        loading weights: 6 %, 1.00 GiB at 1.00 GiB/s
        loading weights: 43 %, 7.00 GiB at 1.75 GiB/s
        ");
    }

    #[test]
    fn a_log_has_a_line_every_interval() {
        let begun = Instant::now();
        let mut rate = Rate { begun: Some(begun), logged: None };
        let due: Vec<u64> =
            (0..35).filter(|seconds| rate.is_due(LOG, begun + Duration::from_secs(*seconds))).collect();
        assert_eq!(due, [10, 20, 30]);
    }
}
