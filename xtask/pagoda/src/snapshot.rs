//! The state of an engine at one moment, for live views and metrics.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kvblock::SeqId;
use serde::Serialize;

use crate::event::{CachedTokens, FinishReason};
use crate::request::RequestId;
use crate::usage::{ReadAhead, TierUse};

/// The state of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Time at which the snapshot was taken.
    #[serde(skip)]
    pub at: Instant,
    /// Sequences that run, in the order of service.
    pub running: Vec<SequenceView>,
    /// Sequences that wait, in the order of service.
    pub waiting: Vec<SequenceView>,
    /// KV blocks of the pool.
    pub blocks: BlockView,
    /// Prefix-cache lookups on the device.
    pub prefix: PrefixView,
    /// Traffic of the KV tiers, without the counters that only the device has.
    pub tiers: TierUse,
    /// Blocks on disk that were read ahead of selections, if the context may be on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected_ahead: Option<ReadAhead>,
    /// Counts since the engine was opened.
    pub totals: Totals,
    /// Prompt tokens computed per second, over the last seconds.
    pub prefill_tok_s: f64,
    /// Tokens generated per second, over the last seconds.
    pub decode_tok_s: f64,
}

/// One unfinished sequence.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SequenceView {
    /// Id of the request.
    pub id: RequestId,
    /// Id of the sequence.
    #[serde(serialize_with = "id")]
    pub seq: SeqId,
    /// Index of the sample in its request.
    pub sample: u32,
    /// Activity of the sequence.
    pub activity: Activity,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of tokens of prompt and output so far.
    pub tokens: u32,
    /// Number of these tokens whose KV is computed.
    pub computed: u32,
    /// Leading prompt tokens that were not computed.
    pub cached: CachedTokens,
    /// Number of KV blocks that the sequence holds, shared ones included.
    pub blocks: u32,
    /// Number of times that it lost its KV blocks and was resumed.
    pub preemptions: u32,
    /// Fraction of the KV blocks that the sequence attended to so far, 0 to 1.
    pub density: f64,
    /// Fraction of the attention mass that the sparse policy was certified to keep so far, 0 to 1; `None` if nothing
    /// is certified.
    pub bound: Option<f64>,
    /// Seconds since the submission of the sequence.
    pub age_s: f64,
    /// Seconds from its submission to its first schedule.
    pub started_s: Option<f64>,
    /// Seconds from its submission to its first token.
    pub first_s: Option<f64>,
}

/// Activity of a sequence, or the reason why it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activity {
    /// The sequence waits for its first step or, if it is a further sample, for the prompt that it shares.
    Waiting,
    /// The sequence waits for KV that is being loaded from a lower tier.
    Loading,
    /// The sequence computes its prompt, or tokens that a preemption dropped.
    Prefill,
    /// The sequence generates.
    Decode,
    /// The sequence lost its KV blocks, and waits to resume.
    Preempted,
}

/// KV blocks of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockView {
    /// Number of all blocks except the null block.
    pub total: u32,
    /// Number of blocks of `total` that are in host memory, beyond the device.
    pub host: u32,
    /// Number of blocks that sequences hold.
    pub used: u32,
    /// Number of blocks that sharing saves: the sum of the blocks of all sequences, less `used`.
    pub shared: u32,
    /// Number of blocks whose content a later request can hit, held or not.
    pub cached: u32,
    /// Number of tokens of a block.
    pub block_size: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// Prefix-cache lookups on the device; lookups of preempted sequences are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PrefixView {
    /// Number of tokens looked up.
    pub queried_tokens: u64,
    /// Number of tokens found.
    pub hit_tokens: u64,
}

/// Counts since an engine was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Number of steps.
    pub steps: u64,
    /// Bytes of weights that steps brought from memory of the host.
    pub streamed_weight_bytes: u64,
    /// Number of prompt tokens computed, those recomputed after preemptions included.
    pub prefill_tokens: u64,
    /// Prompt tokens that were not computed, of all requests that have started.
    pub cached: CachedTotals,
    /// Number of tokens generated.
    pub generated_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of times that a new device was opened because one was lost.
    pub recoveries: u64,
    /// Number of sequences that ended with [`FinishReason::word`] `stop`.
    pub stopped: u64,
    /// Number of sequences that ended with [`FinishReason::word`] `length`.
    pub length: u64,
    /// Number of sequences that ended with [`FinishReason::word`] `abort`.
    pub aborted: u64,
    /// Number of sequences that ended with [`FinishReason::word`] `error`.
    pub failed: u64,
}

impl Totals {
    /// Counts the end of a sequence.
    pub(crate) fn count(&mut self, reason: &FinishReason) {
        let count = match reason.word() {
            "stop" => &mut self.stopped,
            "length" => &mut self.length,
            "abort" => &mut self.aborted,
            _ => &mut self.failed,
        };
        *count += 1;
    }
}

/// Sums of [`CachedTokens`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CachedTotals {
    /// Number of tokens found in the prefix cache on the device.
    pub device: u64,
    /// Number of tokens found in host memory.
    pub host: u64,
    /// Number of tokens found on the local disk.
    pub disk: u64,
    /// Number of tokens found in the remote store.
    pub remote: u64,
}

impl CachedTotals {
    /// Adds the tokens of a request.
    pub(crate) fn add(&mut self, cached: CachedTokens) {
        let CachedTokens { device, host, disk, remote } = cached;
        self.device += u64::from(device);
        self.host += u64::from(host);
        self.disk += u64::from(disk);
        self.remote += u64::from(remote);
    }

    /// The tokens of all tiers.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.device + self.host + self.disk + self.remote
    }
}

pub(crate) fn id<S: serde::Serializer>(seq: &SeqId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(seq.get())
}

/// Length of the time window of a [`Rate`]; the next constant is the length of the parts that the window drops at a
/// time.
const WINDOW: Duration = Duration::from_secs(5);
const PART: Duration = Duration::from_millis(100);

/// Events per second over the last seconds.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// Counts, each with the time of its first event.
    parts: VecDeque<(Instant, u64)>,
}

impl Rate {
    pub(crate) fn add(&mut self, count: u64, now: Instant) {
        match self.parts.back_mut() {
            Some((start, sum)) if now - *start < PART => *sum += count,
            _ => self.parts.push_back((now, count)),
        }
        while self.parts.front().is_some_and(|(start, _)| now - *start > WINDOW) {
            self.parts.pop_front();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
    pub(crate) fn per_second(&self, now: Instant) -> f64 {
        let mut recent = self.parts.iter().filter(|(start, _)| now - *start <= WINDOW).peekable();
        let Some((first, _)) = recent.peek().copied() else { return 0.0 };
        let sum: u64 = recent.map(|(_, count)| count).sum();
        sum as f64 / (now - *first).max(PART).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_forgets_what_is_old() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(start).to_bits(), 0.0_f64.to_bits());
        (0..100).for_each(|step| rate.add(3, at(step * 10)));
        let close = |rate: f64, want: f64| assert!((rate - want).abs() < 1e-9, "{rate}, not {want}");
        close(rate.per_second(at(1000)), 300.0);
        close(rate.per_second(at(2000)), 150.0);
        close(rate.per_second(at(7000)), 0.0);
        rate.add(10, at(8000));
        close(rate.per_second(at(9000)), 10.0);
        assert_eq!(rate.parts.len(), 1);
    }
}
