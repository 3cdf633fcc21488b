//! Bytes that decode steps copy from the host, and the share of their time that other work hides.

use std::fmt;

use models::FetchCost;
use serde::Serialize;

use pagoda_cli::bench::measure::{Times, count};

/// Fetches of a decode step, as means over the steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Fetches {
    /// Number of bytes that a step fetches from the host.
    pub(super) bytes: f64,
    /// Device time per step in which only a fetch runs: the waits of attention, and the part of prefetches that is not
    /// hidden. Null without timestamps, and without a policy.
    wait_ms: Option<f64>,
    /// Share of the time of a prefetch that the concurrent product hides, from timestamps of both alone and together.
    hidden_ahead: Option<f64>,
    /// Speed of transfers from host to device, without concurrent work.
    fetch_gb_s: Option<f64>,
    /// Milliseconds by which a step of the control takes longer than a step with everything resident: the time of
    /// decisions and copies without the bus.
    decisions_ms: Option<f64>,
    /// Milliseconds by which a step is longer than one of the control.
    longer_ms: Option<f64>,
    /// Share of transfer time that other work hides: 1 minus `longer_ms` divided by the transfer time, which is the
    /// number of bytes over the rate of a fetch alone.
    hidden: Option<f64>,
    /// Share of transfer time that other work hides if decisions count as transfer: the step is compared with a step
    /// where everything is resident.
    hidden_with_decisions: Option<f64>,
    /// Time of the fetches of a step, without concurrent work.
    #[serde(skip)]
    transfer_ms: Option<f64>,
}

impl Fetches {
    /// Takes the fetches of a batch; `None` if nothing came from the host.
    pub(super) fn new(times: &Times, cost: Option<FetchCost>) -> Option<Self> {
        let pages = times.pages.unwrap_or_default();
        let bytes = pages.bytes() + times.copied_bytes;
        if bytes == 0 {
            return None;
        }
        let steps = count(times.steps.max(1) as u64);
        let cost = cost.filter(|_| pages.bytes() > 0);
        let ms = |of: fn((f64, f64)) -> f64| cost.map(|cost| of(cost.of(&pages)) / 1e6 / steps);
        Some(Self {
            bytes: count(bytes) / steps,
            wait_ms: ms(|(_, waited)| waited),
            hidden_ahead: cost.filter(|_| pages.prefetched > 0).map(|cost| cost.hidden_ahead),
            fetch_gb_s: cost.map(|cost| 1.0 / cost.ns_per_byte),
            decisions_ms: None,
            longer_ms: None,
            hidden: None,
            hidden_with_decisions: None,
            transfer_ms: ms(|(all, _)| all),
        })
    }

    /// Compares steps of `step_ms` with steps where everything is resident, and with the steps of the control, if these were
    /// measured.
    pub(super) fn compare(&mut self, step_ms: f64, resident_ms: Option<f64>, control_ms: Option<f64>) {
        let longer = |than: Option<f64>| than.map(|ms| step_ms - ms);
        let hidden = |longer: Option<f64>| Some((1.0 - longer? / self.transfer_ms?).clamp(0.0, 1.0));
        (self.hidden, self.hidden_with_decisions) = (hidden(longer(control_ms)), hidden(longer(resident_ms)));
        self.longer_ms = longer(control_ms);
        self.decisions_ms = control_ms.zip(resident_ms).map(|(control, resident)| control - resident);
    }
}

impl fmt::Display for Fetches {
    /// Describes the fetches of a step from the host, and the part of them that is known to be hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} MB a step from the host", self.bytes / 1e6)?;
        let times = [
            ("waited", self.wait_ms),
            ("longer than the control", self.longer_ms),
            ("decisions", self.decisions_ms),
        ];
        let shares = [("hidden", self.hidden), ("with decisions", self.hidden_with_decisions)];
        self.fetch_gb_s.map_or(Ok(()), |rate| write!(f, " at {rate:.1} GB/s"))?;
        times.iter().try_for_each(|(name, ms)| ms.map_or(Ok(()), |ms| write!(f, ", {name} {ms:.3} ms")))?;
        shares
            .iter()
            .try_for_each(|(name, of)| of.map_or(Ok(()), |of| write!(f, ", {name} {:.0} %", of * 100.0)))
    }
}

#[cfg(test)]
mod tests {
    use models::PageTraffic;

    use super::*;

    #[test]
    fn time_of_transfers_is_hidden_by_as_much_as_steps_are_not_longer() {
        let pages = PageTraffic { misses: 10, prefetched: 30, page_bytes: 1000, ..PageTraffic::default() };
        let times = Times { steps: 4, pages: Some(pages), copied_bytes: 8000, ..Times::default() };
        let cost = FetchCost { ns_per_byte: 100.0, hidden_ahead: 0.5 };
        let mut fetches = Fetches::new(&times, Some(cost)).unwrap();
        // A step moves 10,000 bytes of pages, which takes 1 ms, and 2,000 of whole blocks.
        assert_eq!(
            (fetches.bytes, fetches.transfer_ms, fetches.fetch_gb_s),
            (12_000.0, Some(1.0), Some(0.01))
        );
        assert_eq!((fetches.wait_ms, fetches.hidden_ahead), (Some(0.625), Some(0.5)));
        fetches.compare(10.25, Some(9.5), Some(10.0));
        assert_eq!((fetches.decisions_ms, fetches.longer_ms), (Some(0.5), Some(0.25)));
        assert_eq!((fetches.hidden, fetches.hidden_with_decisions), (Some(0.75), Some(0.25)));
        insta::assert_snapshot!(fetches, @"0.012 MB a step from the host at 0.0 GB/s, waited 0.625 ms, longer than the control 0.250 ms, decisions 0.500 ms, hidden 75 %, with decisions 25 %");
        assert_eq!(Fetches::new(&Times { steps: 4, ..Times::default() }, Some(cost)), None);
    }
}
