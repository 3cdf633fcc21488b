//! Chunking: how many rows of index logits are computed at a time, so that they fit in memory.

use core::ops::Range;

use super::{
    logits::{IndexKeys, IndexQueries},
    transform::{TopkRows, Transform, topk_transform},
};

/// Minimum number of logits that are computed in chunks.
const CHUNK_MIN_LOGITS: u64 = 8_000_000;
const LOGIT_BYTES: u64 = 4;
/// Fraction of the total memory. Logits that take more than this are computed in chunks.
const TOTAL_SHARE: f64 = 0.3;
/// Default limit of [`group_requests`] on the bytes of logits. Library only.
pub const LOGITS_MAX_BYTES: u64 = 512 << 20;

/// Device memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Size of the memory that is free now.
    pub free: u64,
    /// Size of all memory.
    pub total: u64,
}

/// Whether the logits of `q` queries over `k` keys are computed in chunks: if there are at least 8,000,000 of
/// them and they take more than half of the free memory or more than 0.3 of the total.
#[must_use]
pub fn should_chunk(q: usize, k: usize, memory: Memory) -> bool {
    let logits = q as u64 * k as u64;
    let bytes = logits * LOGIT_BYTES;
    logits >= CHUNK_MIN_LOGITS
        && (bytes * 2 > memory.free || bytes as f64 > memory.total as f64 * TOTAL_SHARE)
}

/// Number of rows per chunk: as many as half of the free memory holds, in `1..=q`.
#[must_use]
pub fn max_rows(q: usize, k: usize, memory: Memory) -> usize {
    let rows = memory.free / 2 / (k.max(1) as u64 * LOGIT_BYTES);
    usize::try_from(rows).unwrap_or(usize::MAX).clamp(1, q.max(1))
}

/// Number of rows of `q` that are scored at one time: all of them if they are not chunked.
#[must_use]
pub fn rows_at_once(q: usize, k: usize, memory: Memory) -> usize {
    if should_chunk(q, k, memory) { max_rows(q, k, memory) } else { q.max(1) }
}

/// The row ranges in which `q` queries are scored; a single one if they are not chunked. Library only: the engine's portions are
/// multiples of what bindings are aligned to.
pub fn row_chunks(q: usize, k: usize, memory: Memory) -> impl Iterator<Item = Range<usize>> {
    let rows = rows_at_once(q, k, memory);
    (0..q).step_by(rows).map(move |start| start..(start + rows).min(q))
}

/// Positions or slots of the `k` best keys of every query, `[q_len, k]`. Logits are computed one row range at
/// a time, and each is transformed immediately with its slice of the row metadata. The choice of ranges does
/// not change the result. Library only: in the engine, kernels do this work.
#[must_use]
pub fn topk_chunked(
    queries: &IndexQueries,
    keys: &IndexKeys,
    (ks, ke): (&[u32], &[u32]),
    k: usize,
    transform: &Transform<'_>,
    chunks: impl IntoIterator<Item = Range<usize>>,
) -> Vec<i32> {
    let mut out = Vec::with_capacity(queries.len() * k);
    for rows in chunks {
        let lens: Vec<u32> = rows.clone().map(|m| ke[m].saturating_sub(ks[m])).collect();
        let input = TopkRows {
            logits: &queries.logits(rows.clone(), keys, ks, ke),
            width: keys.len(),
            starts: &ks[rows.clone()],
            lens: &lens,
        };
        out.extend(topk_transform(&input, k, &transform.slice(rows)));
    }
    out
}

/// Requests that are scored together; see [`group_requests`]. Library only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Requests of the batch.
    pub requests: Range<usize>,
    /// The queries scored, if the group is a part of a single request that is too large; `None` for all
    /// queries.
    pub rows: Option<Range<usize>>,
}

/// Groups requests `(q_len, kv_len)` in order (vLLM's chunker): the logits of a group, all its queries over
/// all its keys, take at most `logits_max_bytes`, and its gathered keys number at most `keys_max`. A request
/// whose logits alone are too large is split by queries. Library only: the engine gathers no keys, so rows of any requests are
/// scored together.
#[must_use]
pub fn group_requests(requests: &[(usize, usize)], keys_max: usize, logits_max_bytes: u64) -> Vec<Group> {
    let bytes = |q: usize, k: usize| q as u64 * k as u64 * LOGIT_BYTES;
    let mut groups = Vec::new();
    let (mut first, mut queries, mut keys) = (0, 0, 0);
    for (i, &(q, k)) in requests.iter().enumerate() {
        let is_full = keys + k > keys_max || bytes(queries + q, keys + k) > logits_max_bytes;
        if is_full && first < i {
            groups.push(Group { requests: first..i, rows: None });
            (first, queries, keys) = (i, 0, 0);
        }
        if bytes(q, k) > logits_max_bytes {
            let rows = usize::try_from(logits_max_bytes / (k as u64 * LOGIT_BYTES)).unwrap_or(q).max(1);
            let cuts = (0..q).step_by(rows).map(|start| start..(start + rows).min(q));
            groups.extend(cuts.map(|rows| Group { requests: i..i + 1, rows: Some(rows) }));
            first = i + 1;
        } else {
            (queries, keys) = (queries + q, keys + k);
        }
    }
    if first < requests.len() {
        groups.push(Group { requests: first..requests.len(), rows: None });
    }
    groups
}
