//! Token indices for DeepSeek-V4's attention to a sliding window of raw tokens and to compressed tokens, and
//! the [`compressor`] that produces the latter.
//!
//! Library only: the engine's kernels fill such lists on the device (`prefix_slots`), and attend prompts in their cache blocks,
//! without a workspace. The compressor is the reference of the kernel `v4_compress`.

use core::ops::Range;

use crate::{dsa::transform::PADDING, selection::count_u32};

pub mod compressor;

/// Divisor of the width of prefill index rows.
const ROW_ALIGNMENT: usize = 128;
/// Maximum number of requests that share a prefill workspace.
pub const REQUESTS_PER_CHUNK: usize = 4;

/// A row of indices for a kernel, padded with -1, and its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// Indices, then padding.
    pub indices: Vec<i32>,
    /// Number of indices before the padding.
    pub len: u32,
}

impl IndexRow {
    fn new(indices: impl IntoIterator<Item = u32>, width: impl FnOnce(usize) -> usize) -> Self {
        let to_i32 = |i| i32::try_from(i).expect("slots fit the i32 of index tensors");
        let mut indices: Vec<i32> = indices.into_iter().map(to_i32).collect();
        let len = count_u32(indices.len());
        indices.resize(width(indices.len()), PADDING);
        Self { indices, len }
    }
}

/// Positions in the window of `window` tokens that ends at the query's own position `pos`.
#[must_use]
pub fn window_positions(pos: u32, window: u32) -> Range<u32> {
    (pos + 1).saturating_sub(window)..pos + 1
}

/// Physical slots of a decode token's window, `[window]`: `table[p / bs] * bs + p % bs` in order of position.
/// For a padding token (`None`), the row is empty.
///
/// # Panics
/// When the block table ends before the position.
#[must_use]
pub fn swa_decode_row(pos: Option<u32>, window: u32, table: &[u32], block_size: u32) -> IndexRow {
    let positions = pos.map_or(0..0, |pos| window_positions(pos, window));
    let slot = |p: u32| table[(p / block_size) as usize] * block_size + p % block_size;
    IndexRow::new(positions.map(slot), |_| window as usize)
}

/// Number of compressed tokens complete at `pos`: `(pos + 1) / ratio`. C128A attends to all of them, without
/// an indexer.
#[must_use]
pub const fn compressed_len(pos: u32, ratio: u32) -> u32 {
    (pos + 1) / ratio
}

/// Number of compressed tokens that C4A's indexer selects at `pos`.
#[must_use]
pub fn c4a_count(pos: u32, topk: u32) -> u32 {
    compressed_len(pos, 4).min(topk)
}

/// The workspace of one prefill chunk: for each request, the compressed entries, then its gathered raw
/// window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillWorkspace {
    /// Number of compressed entries per request, `N = ceil(max_len / ratio)`.
    pub compressed: u32,
    /// Number of tokens per window, `W`.
    pub window: u32,
    /// Maximum number of query tokens of a batch.
    pub max_batched: u32,
}

impl PrefillWorkspace {
    /// The workspace for sequences of at most `max_len` tokens.
    #[must_use]
    pub const fn new(max_len: u32, ratio: u32, window: u32, max_batched: u32) -> Self {
        Self { compressed: max_len.div_ceil(ratio), window, max_batched }
    }

    /// Number of entries from one request to the next, `M = N + W + max_batched`.
    #[must_use]
    pub const fn stride(&self) -> u32 {
        self.compressed + self.window + self.max_batched
    }

    /// Raw positions gathered for a request with `prefix` cached tokens: the last
    /// `q_len + min(prefix, W - 1)`.
    #[must_use]
    pub fn gathered(&self, prefix: u32, q_len: u32) -> Range<u32> {
        prefix - prefix.min(self.window - 1)..prefix + q_len
    }

    /// Workspace indices for the query at `pos` of request `b` of the chunk: the compressed positions in
    /// `topk`, then the query's window. The width is a multiple of 128.
    ///
    /// # Panics
    /// When the window of `pos` is not within the `gathered` positions, or `topk` names an entry that does
    /// not exist.
    #[must_use]
    pub fn row(&self, b: u32, pos: u32, gathered: &Range<u32>, topk: &[u32]) -> IndexRow {
        let first = self.stride() * b;
        let seen = window_positions(pos, self.window);
        assert!(
            gathered.start <= seen.start && seen.end <= gathered.end,
            "window {seen:?} of gathered {gathered:?}"
        );
        let compressed = topk.iter().map(|&c| {
            assert!(c < self.compressed, "compressed entry {c} of {}", self.compressed);
            first + c
        });
        let raw = seen.map(|p| first + self.compressed + p - gathered.start);
        IndexRow::new(compressed.chain(raw), |len| len.next_multiple_of(ROW_ALIGNMENT))
    }
}

/// Splits the requests of a prefill batch into chunks that share a workspace.
pub fn prefill_chunks(requests: usize) -> impl Iterator<Item = Range<usize>> {
    (0..requests)
        .step_by(REQUESTS_PER_CHUNK)
        .map(move |first| first..(first + REQUESTS_PER_CHUNK).min(requests))
}
