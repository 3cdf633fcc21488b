//! Splits of the keys of a step's rows and tiles, by attention group.

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::paged_decode::PARTITION;
use attn_kernels::split::{KeySplit, SplitPlan, SplitPlanner};

use super::attention_groups::AttentionGroup;
use super::batch::{AttentionRows, Batch, Dense};
use super::keys::OffloadPlan;
use super::options::DecoderOptions;
use crate::cast::u32_of;
use crate::kv::split_planner;
use crate::{DecoderConfig, KvPool, Reach};

/// Splits of the keys of rows that attend everything they see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Division {
    /// Split of the keys of rows that are attended one by one.
    pub(super) split: SplitPlan,
    /// Split of the keys that tiles attend to.
    pub(super) parts: KeySplit,
}

/// Splits of a step, and the planner that makes them.
#[derive(Debug)]
pub(super) struct Splits {
    planner: SplitPlanner,
    /// Fixed number of keys of a partition for rows that attend everything they see; `None` if the number may depend on
    /// the step. Reproducible rows may not depend on the lengths of other rows.
    fixed: Option<u32>,
    /// Fixed number of keys of a partition for rows that attend lists; `None` if the number may depend on the step. It is
    /// also fixed if pages have slots, since slots hold whole partitions.
    lists_fixed: Option<u32>,
    /// Divisions of the step, by attention group.
    attn_groups: Vec<[Division; 2]>,
}

impl Splits {
    pub(super) fn new(gpu: &Gpu, config: &DecoderConfig, options: &DecoderOptions, kv: &KvPool) -> Self {
        let planner = split_planner(gpu, config, kv.shape(), options.uses_coop(gpu));
        let fixed = options.reproducible.then_some(planner.fixed());
        let lists_fixed = if kv.page_slots() > 0 { Some(PARTITION) } else { fixed };
        Self { planner, fixed, lists_fixed, attn_groups: Vec::new() }
    }

    /// Splits the keys of tiles and of rows that attend everything they see. Chunks of the ring are whole partitions of the fixed
    /// size.
    pub(super) fn plan(&mut self, attn_groups: &[AttentionGroup], batch: &Batch, offload_plan: &OffloadPlan) {
        let of_group = |(index, attn_group): (usize, &AttentionGroup)| {
            Dense::BOTH.map(|which| {
                let streams = offload_plan.stream(index, which).is_some();
                self.divide(attn_group.reach, batch.attn_groups[index].dense(which), streams)
            })
        };
        self.attn_groups = attn_groups.iter().enumerate().map(of_group).collect();
    }

    fn divide(&self, reach: Reach, rows: &AttentionRows, streams: bool) -> Division {
        let fixed = self.fixed.or(streams.then_some(self.planner.fixed()));
        let split = self.planner.all(&rows.decode, fixed);
        if fixed.is_some() || reach != Reach::Full {
            return Division { split, parts: KeySplit::default() };
        }
        let end = rows.tiles.iter().map(|tile| tile.position + tile.rows).max().unwrap_or(0);
        Division { split, parts: self.planner.parts(u32_of(rows.tiles.len()), end) }
    }

    /// Returns the planner of the step's splits.
    pub(super) fn planner(&self) -> &SplitPlanner {
        &self.planner
    }

    /// Returns how the keys of the rows `which` of an attention group are split.
    pub(super) fn of(&self, attn_group: usize, which: Dense) -> Division {
        self.attn_groups[attn_group][which as usize]
    }

    /// Returns the splits of all rows that attend everything they see.
    pub(super) fn all(&self) -> impl Iterator<Item = SplitPlan> {
        self.attn_groups.iter().flatten().map(|division| division.split)
    }

    /// Returns the maximum number of parts of tiles; 1 if no tile's keys are split.
    pub(super) fn max_parts(&self) -> u32 {
        self.attn_groups.iter().flatten().map(|division| division.parts.count).max().unwrap_or(1)
    }

    /// Splits rows that attend lists of at most `tokens` tokens.
    pub(super) fn listed(&self, rows: &AttentionRows, tokens: u32) -> SplitPlan {
        self.planner.listed(&rows.decode, tokens, self.lists_fixed)
    }

    /// Returns the maximum number of partitions of one of `rows`, for any lists.
    pub(super) fn max_listed(&self, rows: &AttentionRows) -> u32 {
        self.planner.max_listed(&rows.decode, self.lists_fixed)
    }
}
