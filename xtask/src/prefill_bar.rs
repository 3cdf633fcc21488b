//! Progress of prompts, on stderr where that is a terminal.

use std::fmt;

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use pagoda::{Engine, Event};

use crate::compile_line::compile_line;
use crate::status_line::StatusLine;

/// A bar that shows how many tokens of the running prompts are computed, and how many are left. It comes and goes with them.
#[derive(Debug)]
pub struct PrefillBar {
    bar: ProgressBar,
    /// Kernels that the first steps wait for, until text is printed.
    kernels: Option<StatusLine>,
    /// Whether the step that is next has kernels of its own to compile, which decode needs and prompts do not.
    warms: bool,
    /// Events of steps whose text waits.
    held: Vec<Event>,
    /// Whether a line is told for each step in place of the bar.
    told: bool,
}

impl PrefillBar {
    /// A bar for `engine`, or none if `quiet`; lines if `verbose`.
    ///
    /// # Panics
    /// Never: the template of the bar is a constant.
    #[must_use]
    pub fn new(engine: &Engine, quiet: bool, verbose: bool) -> Self {
        let bars = MultiProgress::new();
        let bar = if quiet || verbose { ProgressBar::hidden() } else { bars.add(ProgressBar::no_length()) };
        let kernels = (!quiet).then(|| compile_line(&bars, engine.decoder().gpu()));
        let style = ProgressStyle::with_template("prompt [{bar:40}] {pos} of {len} tokens{left}");
        Self {
            bar: bar.with_style(
                style.expect("the template is valid").progress_chars("=> ").with_key("left", left),
            ),
            kernels,
            warms: false,
            held: Vec::new(),
            told: verbose,
        }
    }

    /// Shows where the prompts of an engine are, behind a step that gave `events`. Returns the events whose text may be printed.
    ///
    /// Text waits while the next step compiles kernels: it would stand where the line about them comes, or stop behind its first
    /// token in silence.
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

/// Time that is left, once there is a rate.
fn left(state: &ProgressState, to: &mut dyn fmt::Write) {
    if state.pos() > 0 {
        let _ = write!(to, ", {:#} left", HumanDuration(state.eta()));
    }
}
