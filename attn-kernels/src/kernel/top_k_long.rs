//! Selects the k largest scores of long rows, after `top_k_peaks`.

use super::top_k::{self, Output, TopKParams};
use super::top_k_peaks::{self, GROUP, TopKPeaksParams};
use crate::profile::DeviceProfile;
use crate::rows::{PhysicalBlock, TopRow};
use crate::{Level, Variant};

kernel! {
    /// The kernel; [`TopKLongBuffers`] lists its bindings.
    "top_k_long"(TopKLongParams, TopKLongBuffers): Selection,
    grid: |params, _| super::flat_grid(params.rows),
    listed: |_| top_k::listed_by(variant),
    variants: "outputs of `top_k`; prefix sums by tree or subgroup",
    bytes: "`scores / 4 + 64 * k` per row",
    cases: crate::self_test::top_k::long_cases,
}

params! {
    /// Uniform parameters: those of [`TopKParams`], and the sizes of the scratch buffers.
    pub struct TopKLongParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of u32 from one list or row of the output to the next.
        pub out_stride: u32,
        /// Number of equal lists per row.
        pub copies: u32,
        /// Number of tokens of a page.
        pub page_size: u32,
        /// Number of groups of the longest row, as `top_k_peaks` ran.
        pub max_groups: u32,
        /// Maximum number of groups that a row may choose.
        pub max_chosen: u32,
    }
}

bindings! {
    /// Buffers of `top_k_long`.
    pub struct TopKLongBuffers(TopKLongParams) {
        /// Scores in whole vectors of four.
        read scores: f32,
        /// Rows, `[n]`.
        read rows: TopRow,
        /// Page table, which only the paged transform reads.
        read table: PhysicalBlock,
        /// Peaks of groups, `[n, max_groups]`, as `top_k_peaks` wrote them.
        read peaks: u32,
        /// Scratch `[n, max_chosen]`: groups, ascending.
        write chosen: u32,
        /// Scratch `[n, 16 * max_chosen]`: positions, ascending.
        write kept: u32,
        /// Lists or positions, as in `top_k`.
        index out: u32,
    }
}

impl TopKLongParams {
    /// Parameters that correspond to `top_k`'s, for rows of at most `max_scores` scores that select at most `max_k`.
    #[must_use]
    pub fn new(params: &TopKParams, max_scores: u32, max_k: u32) -> Self {
        let TopKParams { rows, out_stride, copies, page_size } = *params;
        let max_groups = top_k_peaks::max_groups(max_scores);
        let max_chosen = max_k.saturating_add(max_k / 8).clamp(1, max_groups);
        Self { rows, out_stride, copies, page_size, max_groups, max_chosen }
    }

    /// Parameters of `top_k_peaks`, which runs before this kernel.
    #[must_use]
    pub fn peaks(&self) -> TopKPeaksParams {
        TopKPeaksParams { rows: self.rows, max_groups: self.max_groups }
    }

    /// Number of u32 of each scratch buffer: peaks, chosen, kept.
    #[must_use]
    pub fn scratch_lens(&self) -> [usize; 3] {
        [self.max_groups, self.max_chosen, self.max_chosen * GROUP].map(|n| self.rows as usize * n as usize)
    }
}

/// Returns the variant for one kind of output; subgroups shorten its prefix sums.
#[must_use]
pub fn variant(output: Output, level: Level) -> Variant {
    top_k::specialised(Variant::new(&KERNEL), output, level)
}

/// The kernel for one kind of output at the highest level at which a device runs it.
#[must_use]
pub fn best(profile: &DeviceProfile, output: Output) -> Variant {
    profile.level(profile.top_k_level()).best(|level| variant(output, level))
}
