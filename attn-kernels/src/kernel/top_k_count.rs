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
    /// Scores a workgroup counts: see [`chunk`].
    pub chunk: u32,
}

/// Scores of a chunk, at least and at most: a row has no more than 256 chunks, and a chunk's counts fit 16 bits.
pub const CHUNKS: std::ops::RangeInclusive<u32> = 4096..=32_768;

/// Workgroups that a large device runs at once: more only wait, and each reads the counts of its row first.
const AT_ONCE: u32 = 512;

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

/// Scores a workgroup counts, a power of two in [`CHUNKS`], for `rows` rows of at most `most_scores`. The result does not
/// depend on it.
#[must_use]
pub fn chunk(rows: u32, most_scores: u32) -> u32 {
    let all = u64::from(rows) * u64::from(most_scores);
    let even = u32::try_from(all / u64::from(AT_ONCE)).unwrap_or(u32::MAX);
    even.min(*CHUNKS.end()).max(*CHUNKS.start()).next_power_of_two()
}

/// Chunks of `chunk` scores of the longest row of at most `most_scores`.
#[must_use]
pub fn max_chunks(most_scores: u32, chunk: u32) -> u32 {
    most_scores.div_ceil(chunk).max(1)
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
