//! Counts of long rows: what `top_k_gather` selects by.
//!
//! A row of `top_k` is one workgroup's work. Rows beyond [`LONG`] scores are shared out among workgroups instead: record
//! this kernel once for each of [`STEPS`], then [`top_k_gather`](super::top_k_gather) once.

use crate::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: scores, rows, counts, cuts, tallies.
pub static KERNEL: Kernel = Kernel {
    name: "top_k_count",
    wgsl: include_str!("../../wgsl/top_k_count.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<TopKCountParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write, Access::Write, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TopKCountParams {
    /// Rows.
    pub rows: u32,
    /// Chunks of the longest row.
    pub max_chunks: u32,
    /// One of [`STEPS`].
    pub digit: u32,
    /// Zero.
    pub pad0: u32,
}

/// Scores a workgroup counts.
pub const CHUNK: u32 = 4096;

/// Scores from which a row is better shared out.
pub const LONG: u32 = 16_384;

/// Values of `digit`, in the order of their dispatches.
pub const STEPS: std::ops::Range<u32> = 0..4;

/// Bins of each of the three digits.
pub const BINS: usize = 2048;

/// Elements of `counts` (u32, zero when new), `cuts` and `tallies` (two u32 each) for up to `rows` rows.
#[must_use]
pub fn scratch_lens(rows: usize, max_chunks: u32) -> [usize; 3] {
    [rows * 3 * BINS, rows * 4, rows * max_chunks as usize]
}

/// Chunks of the longest row of at most `most_scores`.
#[must_use]
pub fn max_chunks(most_scores: u32) -> u32 {
    most_scores.div_ceil(CHUNK).max(1)
}

/// The kernel; subgroups shorten its prefix sums.
#[must_use]
pub fn variant(level: Level) -> Variant {
    let scan = if level == Level::Baseline { "scan_tree" } else { "scan_subgroup" };
    Variant::new(&KERNEL).module("scan", scan)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(max_chunks: u32, rows: u32) -> [u32; 3] {
    let [y, z, _] = super::flat_grid(rows);
    [max_chunks, y, z]
}
