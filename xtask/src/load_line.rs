//! Progress of loading weights.

use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, MultiProgress};
use pagoda::{LoadProgress, Loaded};

use crate::status_line::{Patience, StatusLine};

/// Interval of the lines of a log, where stderr is no terminal.
const LOG: Duration = Duration::from_secs(10);

/// Interval of these lines with `--verbose`.
const VERBOSE_LOG: Duration = Duration::from_secs(1);

/// A line about the weights that are loaded, where that takes more than half a second. Where stderr is no terminal, a line every
/// ten seconds, or if `verbose` every second.
#[must_use]
pub fn load_line(bars: &MultiProgress, progress: &LoadProgress, verbose: bool) -> StatusLine {
    let (progress, mut patience) = (progress.clone(), Patience::default());
    let mut rate = Rate::default();
    let mut log = bars.is_hidden().then(|| Log::every(if verbose { VERBOSE_LOG } else { LOG }));
    StatusLine::among(bars, move |now| {
        let loaded = progress.loaded();
        rate.see(loaded, now);
        if !patience.is_over(loaded.is_running(), now) {
            return None;
        }
        let line = rate.line(loaded, now);
        if let Some(log) = &mut log
            && log.is_due(now)
        {
            eprintln!("{line}");
        }
        Some(line)
    })
}

/// A line while the whole checkpoint is read, where that takes more than half a second.
#[must_use]
pub fn reading_line() -> StatusLine {
    let mut patience = Patience::default();
    let line = "reading the checkpoint: KV that outlives a run is found by its contents";
    StatusLine::among(&MultiProgress::new(), move |now| patience.is_over(true, now).then(|| line.to_owned()))
}

/// Times of a log's lines.
#[derive(Debug)]
struct Log {
    every: Duration,
    last: Instant,
}

impl Log {
    fn every(every: Duration) -> Self {
        Self { every, last: Instant::now() }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.last) >= self.every;
        if due {
            self.last = now;
        }
        due
    }
}

/// Time since which weights are loaded.
#[derive(Debug, Default)]
struct Rate {
    begun: Option<Instant>,
}

impl Rate {
    fn see(&mut self, loaded: Loaded, now: Instant) {
        self.begun = loaded.is_running().then(|| self.begun.unwrap_or(now));
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut log = Log::every(LOG);
        let begun = log.last;
        let due: Vec<u64> =
            (0..35).filter(|seconds| log.is_due(begun + Duration::from_secs(*seconds))).collect();
        assert_eq!(due, [10, 20, 30]);
    }
}
