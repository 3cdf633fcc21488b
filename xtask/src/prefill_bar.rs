//! Progress of prompts, on stderr where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use pagoda::Engine;

/// A bar that shows how many tokens of the running prompts are computed, and how many are left. It comes and goes with them.
#[derive(Debug)]
pub struct PrefillBar {
    bar: ProgressBar,
    /// Whether a line is told for each step in place of the bar.
    told: bool,
}

impl PrefillBar {
    /// A bar, or none if `quiet`; lines if `verbose`.
    ///
    /// # Panics
    /// Never: the template of the bar is a constant.
    #[must_use]
    pub fn new(quiet: bool, verbose: bool) -> Self {
        let bar = if quiet || verbose { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let style = ProgressStyle::with_template("prompt [{bar:40}] {pos} of {len} tokens, {eta} left");
        Self {
            bar: bar.with_style(style.expect("the template is valid").progress_chars("=> ")),
            told: verbose,
        }
    }

    /// Shows where the prompts of an engine are, behind a step of it.
    pub fn show(&self, engine: &Engine) {
        let scheduler = engine.scheduler();
        let open = scheduler.running().iter().filter(|seq| scheduler.is_prefill(**seq));
        let tokens = open.map(|seq| (scheduler.num_computed(*seq), scheduler.tokens(*seq).len() as u64));
        let (done, all) = tokens.fold((0, 0), |sum, (done, all)| (sum.0 + u64::from(done), sum.1 + all));
        if all == 0 {
            self.bar.finish_and_clear();
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
