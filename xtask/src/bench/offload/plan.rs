//! Plans of `bench offload`: a RON file, or one of the two that are built in.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::bench::plan;

/// Steps of a walk that show its turnover.
pub(super) const LOOKS: u32 = 4;

/// A model of random layers, contexts, and device pools that are too small for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub(super) layers: u32,
    /// Width of the residual stream.
    pub(super) hidden: u32,
    /// Width inside the MLP.
    pub(super) inner: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// Tokens of a block, of the cache and of selections.
    pub(super) block_size: u32,
    /// Tokens of the context.
    pub(super) context: u32,
    /// Share of the blocks that a step selects.
    pub(super) select: f64,
    /// Policies among `quest`, `gsa` (by mean keys), `gsa-ucm` and `esa`; the first one is measured over pools.
    pub(super) policies: Vec<String>,
    /// Device pools, as shares of the context.
    pub(super) pools: Vec<f64>,
    /// The pool of all other rows.
    pub(super) pool: f64,
    /// Percent of the selected blocks that change from step to step.
    pub(super) turnovers: Vec<f64>,
    /// The turnover of all other rows.
    pub(super) turnover: f64,
    /// Streams of the row that shares the context among several; 1 for no such row.
    pub(super) batch: u32,
    /// Tokens of the context of the row with a short one; 0 for no such row.
    pub(super) short: u32,
    /// Steps before the measured ones.
    pub(super) warm_up: u32,
    /// Measured steps.
    pub(super) steps: u32,
    /// Measured steps of dense attention, each of which reads the whole context from the host.
    pub(super) streamed_steps: u32,
    /// Blocks that the disk tier is measured with.
    pub(super) disk_blocks: u32,
}

impl Plan {
    /// The plan of a file, or the one that is built in: a small one for software drivers.
    ///
    /// # Errors
    /// A file that cannot be read, and values out of range.
    pub(super) fn read(file: Option<&Path>, software: bool) -> Result<Self> {
        plan::read(
            file,
            match software {
                true => include_str!("../../../offload/cpu.ron"),
                false => include_str!("../../../offload/gpu.ron"),
            },
            Self::parse,
        )
    }

    /// The plan in a text.
    ///
    /// # Errors
    /// A text that is none, and values out of range.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let plan: Self = ron::from_str(text)?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        self.check_counts()?;
        let Self { heads, kv_heads, block_size, select, pool, turnover, .. } = self;
        ensure!(heads.is_multiple_of(*kv_heads), "heads is {heads}, not a multiple of kv_heads, {kv_heads}");
        let whole = block_size.is_power_of_two() && (8..=256).contains(block_size);
        ensure!(whole, "block_size is {block_size}, not a power of two from 8 to 256");
        ensure!(*select > 0.0 && *select <= 1.0, "select is {select}, not a share above 0 and up to 1");
        ensure!(!self.policies.is_empty(), "policies is empty");
        self.policies.iter().try_for_each(|policy| self.spec(policy, self.context).map(drop))?;
        for pool in self.pools.iter().chain([pool]) {
            ensure!(
                *pool > 0.0 && *pool < 1.0,
                "a pool is {pool}, not a share of the context between 0 and 1"
            );
        }
        for turnover in self.turnovers.iter().chain([turnover]) {
            ensure!((0.0..=100.0).contains(turnover), "a turnover is {turnover} %, the limits are 0 and 100");
        }
        let (batch, context, walk) = (self.batch, self.context, self.walk());
        ensure!(
            context / batch > *block_size,
            "context is {context}, which gives {batch} streams less than a block of {block_size}"
        );
        let shortest = if self.short > 0 { self.short.min(context / batch) } else { context / batch };
        ensure!(shortest > walk, "{walk} steps do not fit in a context of {shortest} tokens");
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        let counts = [
            ("layers", self.layers, 1024),
            ("hidden", self.hidden, 1 << 16),
            ("inner", self.inner, 1 << 18),
            ("heads", self.heads, 1024),
            ("kv_heads", self.kv_heads, 1024),
            ("head_dim", self.head_dim, 1024),
            ("context", self.context, 1 << 28),
            ("batch", self.batch, 1024),
            ("steps", self.steps, 1 << 20),
            ("streamed_steps", self.streamed_steps, 1 << 20),
            ("disk_blocks", self.disk_blocks, 1 << 24),
        ];
        for (name, count, limit) in counts {
            ensure!((1..=limit).contains(&count), "{name} is {count}, the limits are 1 and {limit}");
        }
        ensure!(self.warm_up <= 1 << 20, "warm_up is {}, the limit is {}", self.warm_up, 1 << 20);
        Ok(())
    }

    /// Maximum number of steps of one walk: those that are measured behind those that warm up, as many of these again with
    /// timestamps, or what shows the turnover.
    pub(super) fn walk(&self) -> u32 {
        (self.warm_up + self.steps.max(self.streamed_steps)).max(2 * self.warm_up).max(LOOKS)
    }

    /// Blocks that a step selects of `context` tokens.
    pub(super) fn budget(&self, context: u32) -> u32 {
        let blocks = f64::from(context.div_ceil(self.block_size));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32")]
        let budget = (blocks * self.select).round().max(4.0) as u32;
        budget
    }

    /// SPEC of a policy that selects `select` of the blocks of `context` tokens.
    ///
    /// # Errors
    /// A name that is none.
    pub(super) fn spec(&self, policy: &str, context: u32) -> Result<String> {
        let (size, share, budget) = (self.block_size, self.select, self.budget(context));
        Ok(match policy {
            "quest" => format!("quest:page_budget={budget},dense_layers=0,block_size={size}"),
            "gsa" => format!("gsa:scoring=mean_k,sparse_ratio={share},block_size={size}"),
            "gsa-ucm" => format!(
                "gsa-ucm:sparse_ratio={share},min_topk=1,max_topk={budget},seg_prefill_threshold=0,block_size={size}"
            ),
            "esa" => format!("esa:sparse_ratio={share},block_size={size}"),
            _ => anyhow::bail!("policy {policy}: one of quest, gsa, gsa-ucm, esa is wanted"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builtin_plans_are_plans_and_their_policies_exist() {
        for software in [false, true] {
            let plan = Plan::read(None, software).unwrap();
            for policy in ["quest", "gsa", "gsa-ucm", "esa"] {
                sparse_select::build(&plan.spec(policy, plan.context).unwrap()).unwrap();
            }
            assert!(plan.spec("full", plan.context).is_err());
        }
        assert_eq!(Plan::read(None, false).unwrap().budget(131_072), 819);
    }

    #[test]
    fn plans_out_of_range_are_refused() {
        let plan = Plan::read(None, true).unwrap();
        for (broken, says) in [
            (Plan { layers: 0, ..plan.clone() }, "layers is 0, the limits are 1 and 1024"),
            (Plan { steps: 0, ..plan.clone() }, "steps is 0, the limits are 1 and 1048576"),
            (Plan { batch: 0, ..plan.clone() }, "batch is 0, the limits are 1 and 1024"),
            (Plan { disk_blocks: u32::MAX, ..plan.clone() }, "disk_blocks is 4294967295, the limits are 1"),
            (Plan { warm_up: u32::MAX, ..plan.clone() }, "warm_up is 4294967295, the limit is 1048576"),
            (Plan { kv_heads: 3, ..plan.clone() }, "heads is 4, not a multiple of kv_heads, 3"),
            (Plan { block_size: 12, ..plan.clone() }, "block_size is 12, not a power of two from 8 to 256"),
            (Plan { policies: vec!["full".into()], ..plan.clone() }, "policy full: one of quest,"),
            (Plan { pool: 1.0, ..plan.clone() }, "a pool is 1, not a share of the context"),
            (Plan { pools: vec![f64::NAN], ..plan.clone() }, "a pool is NaN"),
            (
                Plan { turnovers: vec![101.0], ..plan.clone() },
                "a turnover is 101 %, the limits are 0 and 100",
            ),
            (
                Plan { batch: 1024, ..plan.clone() },
                "context is 8192, which gives 1024 streams less than a block",
            ),
            (Plan { short: plan.walk(), ..plan.clone() }, "steps do not fit in a context of"),
            (Plan { select: 0.0, ..plan }, "select is 0, not a share above 0 and up to 1"),
        ] {
            let said = broken.check().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
