//! Use of KV blocks, traffic of the tiers and sparse attention by requests and the engine.

use std::collections::BTreeMap;
use std::fmt;

use models::{Attended, ChunkCrossing, Crossing, Decoder, KvPlan, Predictions, say_dense_below};
use serde::Serialize;

/// KV cache use of one group of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KvUse {
    /// Number of blocks held.
    pub blocks: u32,
    /// Number of bytes of the blocks in all layers of the group.
    pub bytes: u64,
}

/// Use of the KV cache by name of the group; `blocks` has the number of blocks of each group.
pub(crate) fn kv_use(plan: &KvPlan, blocks: &[u32]) -> BTreeMap<String, KvUse> {
    let of_group = |(group, blocks): (usize, &u32)| {
        (plan.group_name(group), KvUse { blocks: *blocks, bytes: u64::from(*blocks) * plan.block_bytes() })
    };
    blocks.iter().enumerate().map(of_group).collect()
}

/// Density and bound of sparse attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SparseUse {
    /// The policy's SPEC, `indexer` for the model's own, `full` for dense attention.
    pub policy: String,
    /// Share of the KV blocks (for an indexer, of its candidates) that attention reads, from 0 to 1: the mean over steps,
    /// layers and heads.
    pub density: f64,
    /// Attention mass that the policy certifies without reading dropped keys, from 0 to 1: the minimum over steps, layers
    /// and heads. Null if the policy certifies none.
    pub bound: Option<f64>,
    /// Number of tokens below which decode steps of a single sequence are dense because selection takes longer than it
    /// saves. It is 4294967295 if such steps are dense at any length, and null if the policy decides by itself.
    pub dense_below: Option<u32>,
    /// Number of tokens below which the chunks of a prompt are dense because selection takes longer than it saves. It is
    /// 4294967295 if chunks are dense at any length, and null if the policy decides by itself.
    pub prefill_dense_below: Option<u32>,
}

impl SparseUse {
    /// Reports `attended` under the name of the policy `spec` or, without a policy, of the model's indexer. Reports dense
    /// attention if neither selected keys.
    #[must_use]
    pub fn of(spec: Option<&sparse_select::Spec>, attended: Option<&Attended>) -> Self {
        Self {
            policy: policy(spec, attended.is_some()),
            density: attended.map_or(1.0, Attended::density),
            bound: attended.and_then(|attended| attended.mass),
            dense_below: None,
            prefill_dense_below: None,
        }
    }

    /// Adds the lengths below which `decoder` is dense.
    #[must_use]
    pub fn on(self, decoder: &Decoder) -> Self {
        let crossing = decoder.crossing().filter(|crossing| crossing.is_known());
        let chunks = decoder.chunk_crossing().filter(|crossing| crossing.is_known());
        Self {
            dense_below: crossing.map(Crossing::dense_below),
            prefill_dense_below: chunks.map(ChunkCrossing::dense_below).filter(|tokens| *tokens > 0),
            ..self
        }
    }
}

/// The name of the policy or indexer that selects keys.
pub(crate) fn policy(spec: Option<&sparse_select::Spec>, indexer: bool) -> String {
    let own = if indexer { "indexer" } else { "full" };
    spec.map_or_else(|| own.into(), ToString::to_string)
}

impl fmt::Display for SparseUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: density {:.3}", self.policy, self.density)?;
        if let Some(bound) = self.bound {
            write!(f, ", certified mass {bound:.4}")?;
        }
        for (phase, tokens) in [("", self.dense_below), ("prefill ", self.prefill_dense_below)] {
            if let Some(tokens) = tokens {
                write!(f, ", {phase}{}", say_dense_below(tokens))?;
            }
        }
        Ok(())
    }
}

/// Traffic of the KV tiers since the engine was opened; tiers that are not configured are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TierUse {
    /// Pages of selected blocks on the device; absent if the context is not on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<PageUse>,
    /// Host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<TierTraffic>,
    /// Local disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<TierTraffic>,
    /// Remote store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<TierTraffic>,
    /// Blocks of prefixes that were read while their requests waited, if there were some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<ReadAhead>,
    /// Share of transfer time that was overlapped with computation, 0 to 1; null without transfers.
    pub overlap: Option<f64>,
}

/// Counts of pages of selected blocks. A page is the part of a block that belongs to one KV head of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PageUse {
    /// Number of selected pages that were already on the device.
    pub hits: u64,
    /// Number of selected pages that had to be fetched first.
    pub misses: u64,
    /// Number of pages that were fetched ahead because a later step might select them.
    pub prefetched: u64,
    /// Time that computation waited for fetches, in milliseconds; null if the adapter has no timestamps.
    pub wait_ms: Option<f64>,
    /// Blocks that were read ahead from the disk; absent if the context is not on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<ReadAhead>,
}

/// Counts of blocks that were read before they were needed. A read is either of one layer, for blocks that a later
/// selection will probably contain, or of all layers, for a request that waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReadAhead {
    /// Number of blocks that were requested ahead.
    pub predicted: u64,
    /// Number of predicted blocks that were in host memory by the time they were needed.
    pub used: u64,
    /// Number of predicted blocks that were needed before they were read.
    pub late: u64,
}

impl From<Predictions> for ReadAhead {
    fn from(of: Predictions) -> Self {
        Self { predicted: of.predicted, used: of.used, late: of.late }
    }
}

/// Traffic of one KV tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TierTraffic {
    /// Number of blocks read.
    pub hits: u64,
    /// Number of blocks that were looked up and not found, or not readable.
    pub misses: u64,
    /// Number of reads, writes and lookups that failed.
    pub errors: u64,
    /// Time that computation waited for this tier, in milliseconds.
    pub wait_ms: f64,
    /// Number of bytes read from the tier.
    pub bytes_read: u64,
    /// Number of bytes written to the tier.
    pub bytes_written: u64,
}

/// A number of bytes for people: `17 bytes`, `4.0 KiB`, `1.5 GiB`.
#[must_use]
pub fn readable(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // Each unit is 10 bits.
    let unit = (bytes.ilog2() / 10).max(1);
    #[expect(clippy::cast_precision_loss, reason = "one digit behind the point is printed")]
    let count = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    format!("{count:.1} {}", units[unit as usize - 1])
}

impl fmt::Display for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { predicted, used, late } = self;
        write!(f, "{predicted} blocks predicted, {used} of them used, {late} late")
    }
}

impl fmt::Display for TierUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(pages) = &self.device {
            let PageUse { hits, misses, prefetched, wait_ms, ahead } = pages;
            let wait = wait_ms.map_or(String::new(), |wait| format!(", waited {wait:.1} ms"));
            let read = ahead.map_or(String::new(), |ahead| format!(", {ahead}"));
            parts
                .push(format!("device {hits} hits, {misses} misses, {prefetched} fetched ahead{wait}{read}"));
        }
        for (name, tier) in [("host", &self.host), ("disk", &self.disk), ("remote", &self.remote)] {
            let Some(tier) = tier else { continue };
            let TierTraffic { hits, misses, wait_ms, bytes_read, bytes_written, .. } = tier;
            let bytes = format!("{} read, {} written", readable(*bytes_read), readable(*bytes_written));
            parts.push(format!("{name} {hits} hits, {misses} misses, waited {wait_ms:.1} ms, {bytes}"));
        }
        parts.extend(self.ahead.map(|ahead| format!("waiting requests {ahead}")));
        parts.extend(self.overlap.map(|hidden| format!("{:.0} % of transfer time hidden", 100.0 * hidden)));
        write!(f, "tiers: {}", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn bytes_have_units() {
        let said = [0, 1023, 1024, 1536, 1 << 20, 5 << 30, u64::MAX].map(readable).join(", ");
        assert_eq!(said, "0 bytes, 1023 bytes, 1.0 KiB, 1.5 KiB, 1.0 MiB, 5.0 GiB, 16.0 EiB");
    }
}
