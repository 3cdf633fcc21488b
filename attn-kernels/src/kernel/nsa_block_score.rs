//! Block scores from attention over compressed keys, for NSA.

use super::LaunchError;
use super::error::Launch;
use crate::Variant;
use crate::declare::one;
use crate::rows::DecodeRow;
use crate::slot::{self, Number};

kernel! {
    /// The kernel; [`NsaBlockScoreBuffers`] lists its bindings.
    "nsa_block_score"(NsaBlockScoreParams, NsaBlockScoreBuffers): Selection,
    listed: |_| one(variant(32, 16, 64)),
    variants: "one",
    bytes: "`4 * H` per compressed block of a row",
    cases: crate::self_test::retrieval::nsa_block_score,
}

params! {
    /// Uniform parameters.
    pub struct NsaBlockScoreParams {
        /// Query heads.
        pub num_heads: u32,
        /// KV heads.
        pub num_kv_heads: u32,
        /// f32 from one head's probabilities to the next.
        pub prob_stride: u32,
        /// f32 from one KV head's scores to the next.
        pub score_stride: u32,
        /// Tokens from one compressed block to the next.
        pub stride: u32,
        /// First blocks, always selected.
        pub init_blocks: u32,
        /// Last blocks, always selected.
        pub local_blocks: u32,
        /// Infinity, which WGSL cannot write.
        pub infinity: f32,
    }
}

bindings! {
    /// Buffers of `nsa_block_score`.
    pub struct NsaBlockScoreBuffers(NsaBlockScoreParams) {
        /// Probs, `[n, num_heads, prob_stride]`; what a row does not see is not read.
        read probs: f32,
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores, `[n, num_kv_heads, score_stride]`: +inf for the first init_blocks and the last local_blocks, -inf beyond the
        /// sequence.
        write scores: f32,
    }
}

/// Strides of a compressed key.
pub(crate) const KERNEL_STRIDES: Number = Number("KERNEL");

/// The kernel for compressed blocks of `kernel_size` tokens, `stride` apart, and selection blocks of `block` tokens; 32, 16
/// and 64 as published.
///
/// # Panics
/// When either is not a multiple of `stride`.
#[must_use]
pub fn variant(kernel_size: u32, stride: u32, block: u32) -> Variant {
    assert!(kernel_size.is_multiple_of(stride), "compressed blocks of {kernel_size} at stride {stride}");
    assert!(block.is_multiple_of(stride), "selection blocks of {block} at stride {stride}");
    Variant::new(&KERNEL).set(KERNEL_STRIDES, kernel_size / stride).set(slot::BLOCK, block / stride)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(params: &NsaBlockScoreParams, rows: u32) -> [u32; 3] {
    [params.score_stride.div_ceil(64), params.num_kv_heads, rows]
}

/// Checks `rows`, `[-, KV length, -, -]`, for compressed blocks of `kernel_size` and selection blocks of `block` tokens,
/// against buffers of `probs_len` and `scores_len` f32.
///
/// # Errors
/// Heads that do not divide, too many rows, or one longer than its probabilities or scores.
pub fn check(
    params: &NsaBlockScoreParams,
    (kernel_size, block): (u32, u32),
    rows: &[[u32; 4]],
    [probs_len, scores_len]: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("stride", params.stride)?;
    launch.multiple("tokens of a compressed block", kernel_size, params.stride)?;
    launch.multiple("tokens of a block", block, params.stride)?;
    launch.not_zero("tokens of a block", block)?;
    launch.multiple("query heads", params.num_heads, params.num_kv_heads)?;
    let count = rows.len() as u64;
    launch.at_most("rows", count, 65_535)?;
    let probs = count * u64::from(params.num_heads) * u64::from(params.prob_stride);
    launch.at_most("f32 of probabilities", probs, probs_len as u64)?;
    let scores = count * u64::from(params.num_kv_heads) * u64::from(params.score_stride);
    launch.at_most("f32 of scores", scores, scores_len as u64)?;
    for (entry, row) in rows.iter().enumerate() {
        let compressed = row[1].checked_sub(kernel_size).map_or(0, |rest| rest / params.stride + 1);
        launch.entry("number of compressed blocks", entry, compressed.into(), params.prob_stride.into())?;
        launch.entry("number of blocks", entry, row[1].div_ceil(block).into(), params.score_stride.into())?;
    }
    Ok(())
}
