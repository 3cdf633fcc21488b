//! One measurement: a policy on a text or a needle.

use models::Attended;
use pagoda_cli::bench::measure::count;
use pagoda_cli::bench::policies::cells::Kept;
use pagoda_cli::bench::policies::runner::{Ran, Steps};
use serde::{Deserialize, Serialize};

/// Measurement of one policy on one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    /// Model, device and everything else that a result depends on except policy and task.
    pub(super) setup: String,
    /// SPEC of the policy.
    pub(super) policy: String,
    /// `text`, `recall` or the kind of needles.
    pub(super) kind: String,
    /// The task in full.
    pub(super) task: String,
    /// Number of tokens of the sequence.
    pub(super) tokens: u32,
    /// Requested maximum number of tokens of the prompt.
    #[serde(default)]
    pub(super) length: Option<u32>,
    /// Position of the needle, from 0 (start) to 1 (end).
    pub(super) depth: Option<f64>,
    /// Mean negative log likelihood in nats per token.
    pub(super) mean_nll: Option<f64>,
    /// Share of the expected texts that the answer contains.
    pub(super) found: Option<f64>,
    /// The answer.
    pub(super) answer: Option<String>,
    pub(super) prefill: Phase,
    pub(super) decode: Phase,
    /// One string per layer: for each block, in ninths, the share of decode steps and KV heads that selected
    /// it among those that could see it (of query blocks in prefill if the policy leaves decode dense). A
    /// digit stands for one block, or for several in a long text; `-` if nothing could see them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) selected: Vec<String>,
}

/// One phase of a cell; values are per token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) tokens: u32,
    /// Attended share of the blocks; 1 if the policy leaves the phase dense.
    pub(super) density: f64,
    /// Attended share of each layer's blocks, if the policy acts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) layers: Vec<f64>,
    /// Attention mass that is certainly kept.
    pub(super) bound: Option<f64>,
    /// Share of dense attention's mass in the attended blocks, mean over layers and measured queries.
    #[serde(default)]
    pub(super) recall: Option<f64>,
    /// Share of the blocks that query heads select individually, before the heads of a group are combined.
    #[serde(default)]
    pub(super) head_density: Option<f64>,
    /// Bytes of KV that dense attention would read in all layers, per token of decode or chunk of prefill.
    pub(super) kv_bytes_dense: Option<f64>,
    /// Bytes of KV that were read instead.
    pub(super) kv_bytes: Option<f64>,
    /// Milliseconds per token, including the host's part.
    pub(super) ms: f64,
    /// Device time for attention, in microseconds per token.
    pub(super) attention_us: f64,
    /// Device time for selecting blocks, in microseconds per token.
    pub(super) selection_us: f64,
    /// Total device time, in microseconds per token.
    pub(super) device_us: f64,
}

impl Phase {
    /// Measurements of the steps of a phase. `block_bytes` is the size of a selection block of one KV head and layer.
    fn of(steps: &Steps, block_bytes: u64) -> Self {
        let tokens = f64::from(steps.tokens.max(1));
        let bytes = |blocks: fn(&Attended) -> u64| {
            steps.attended.as_ref().map(|attended| ((blocks(attended) * block_bytes) as f64 / tokens).round())
        };
        let attended = steps.attended.as_ref();
        Self {
            tokens: steps.tokens,
            density: rounded(attended.map_or(1.0, Attended::density)),
            layers: attended
                .iter()
                .flat_map(|attended| &attended.layers)
                .map(|t| rounded(t.density()))
                .collect(),
            // Bounds may be tiny.
            bound: attended.and_then(|attended| attended.mass),
            recall: attended.and_then(|attended| attended.recall.value()).map(rounded),
            head_density: attended.and_then(|attended| attended.head_density.value()).map(rounded),
            kv_bytes_dense: bytes(|attended| attended.total().visible),
            kv_bytes: bytes(|attended| attended.total().blocks),
            ms: rounded(steps.wall_s * 1e3 / tokens),
            attention_us: rounded(steps.attention_s * 1e6 / tokens),
            selection_us: rounded(steps.selection_s * 1e6 / tokens),
            device_us: rounded(steps.device_s * 1e6 / tokens),
        }
    }
}

impl Cell {
    /// Fills in the measurements of a run.
    pub(super) fn measured(mut self, ran: &Ran, block_bytes: u64) -> Self {
        self.prefill = Phase::of(&ran.prefill, block_bytes);
        self.decode = Phase::of(&ran.decode, block_bytes);
        let sum: f64 = ran.nll.iter().map(|nll| f64::from(*nll)).sum();
        self.mean_nll = (!ran.nll.is_empty()).then(|| sum / count(ran.nll.len() as u64));
        let chosen = if ran.chosen.is_empty() { &ran.chosen_in_prefill } else { &ran.chosen };
        self.selected = chosen.iter().map(|row| ninths(row)).collect();
        self
    }
}

impl Kept for Cell {
    type Key = (String, String, String);

    fn key(&self) -> Self::Key {
        (self.setup.clone(), self.policy.clone(), self.task.clone())
    }
}

/// Maximum number of digits per layer.
const COLUMNS: usize = 128;

/// `(selected, visible)` counts of blocks as a line of digits; `-` if none was visible, as in a layer that
/// stays dense.
fn ninths(row: &[(u32, u32)]) -> String {
    let share = |blocks: &[(u32, u32)]| {
        let sum = |of: fn(&(u32, u32)) -> u32| blocks.iter().map(|block| f64::from(of(block))).sum::<f64>();
        match sum(|(_, seen)| *seen) {
            0.0 => "-".into(),
            seen => (sum(|(chosen, _)| *chosen) / seen * 9.0).round().to_string(),
        }
    };
    row.chunks(row.len().div_ceil(COLUMNS).max(1)).map(share).collect()
}

/// Rounded to five digits after the decimal point.
fn rounded(x: f64) -> f64 {
    (x * 1e5).round() / 1e5
}

#[cfg(test)]
pub(super) fn example(policy: &str, task: &str) -> Cell {
    Cell {
        setup: "model on device".into(),
        policy: policy.into(),
        kind: task.split(' ').next().unwrap_or_default().into(),
        task: task.into(),
        tokens: 512,
        length: None,
        depth: Some(0.5),
        mean_nll: Some(2.5),
        found: None,
        answer: None,
        prefill: Phase { density: 1.0, ..Phase::default() },
        decode: Phase { density: 0.25, ms: 3.0, ..Phase::default() },
        selected: vec!["95".into()],
    }
}

#[cfg(test)]
mod tests {
    use models::Tally;

    use super::*;

    #[test]
    fn what_was_selected_is_a_digit_a_block() {
        assert_eq!(ninths(&[(4, 4), (0, 4), (1, 2), (0, 0)]), "905-");
        // Two blocks per digit.
        let long = [[(1, 1), (0, 1)], [(0, 0), (3, 3)]].concat().repeat(50);
        assert_eq!(ninths(&long), "59".repeat(50));
    }

    #[test]
    fn phases_are_by_token() {
        let mut attended = Attended::default();
        attended.count(1, Tally { blocks: 30, visible: 120 });
        let steps = Steps {
            tokens: 10,
            wall_s: 0.5,
            attention_s: 1e-3,
            attended: Some(attended),
            ..Steps::default()
        };
        let phase = Phase::of(&steps, 100);
        assert_eq!((phase.density, phase.ms), (0.25, 50.0));
        assert_eq!((phase.kv_bytes_dense, phase.kv_bytes), (Some(1200.0), Some(300.0)));
        assert!((phase.attention_us - 100.0).abs() < 1e-9);
        assert_eq!(Phase::of(&Steps::default(), 100).density, 1.0);
    }
}
