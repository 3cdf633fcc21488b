//! The largest keys of groups of scores: what `top_k_long` chooses groups by.
//!
//! A row of `top_k` is one workgroup's work, score by score. Of rows beyond [`LONG`] scores all workgroups together find the
//! groups' peaks first, and `top_k_long` then reads little more than the groups that count.

use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: scores, rows, peaks.
pub static KERNEL: Kernel = Kernel {
    name: "top_k_peaks",
    wgsl: include_str!("../../wgsl/top_k_peaks.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<TopKPeaksParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TopKPeaksParams {
    /// Rows.
    pub rows: u32,
    /// Groups of the longest row: see [`max_groups`].
    pub max_groups: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

/// Scores from which a row is better shared out.
pub const LONG: u32 = 16_384;

/// Scores of a group.
pub const GROUP: u32 = 16;

/// Groups of a workgroup.
const GROUPS: u32 = 128;

/// Groups of a row of at most `most_scores`, wherever it begins, in whole quads.
#[must_use]
pub fn max_groups(most_scores: u32) -> u32 {
    (most_scores.div_ceil(GROUP) + 1).next_multiple_of(4)
}

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(max_groups: u32, rows: u32) -> [u32; 3] {
    let [y, z, _] = super::flat_grid(rows);
    [max_groups.div_ceil(GROUPS), y, z]
}
