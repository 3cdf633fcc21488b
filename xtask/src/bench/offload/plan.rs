//! What `bench offload` measures: a RON file, or one of the two that are built in.

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
    /// Of `quest`, `gsa` (by mean keys), `gsa-ucm` and `esa`; the first one is measured over pools.
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
        let plan: Self = plan::read(
            file,
            match software {
                true => include_str!("../../../offload/cpu.ron"),
                false => include_str!("../../../offload/gpu.ron"),
            },
        )?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.steps > 0 && self.streamed_steps > 0, "a plan of no steps measures nothing");
        ensure!(!self.policies.is_empty(), "a plan needs a policy");
        ensure!(self.select > 0.0 && self.select <= 1.0, "select: {} is no share", self.select);
        for pool in self.pools.iter().chain([&self.pool]) {
            ensure!(*pool > 0.0 && *pool < 1.0, "a pool of {pool} of the context does not stream");
        }
        for turnover in self.turnovers.iter().chain([&self.turnover]) {
            ensure!((0.0..=100.0).contains(turnover), "a turnover of {turnover} % is none");
        }
        let (batch, context, walk) = (self.batch, self.context, self.walk());
        ensure!(batch > 0 && context / batch > self.block_size, "{batch} streams share {context} tokens");
        let shortest = if self.short > 0 { self.short.min(context / batch) } else { context / batch };
        ensure!(shortest > walk, "{walk} steps do not fit in a context of {shortest} tokens");
        Ok(())
    }

    /// Most steps of one walk: those that are measured behind those that warm up, as many of these again with timestamps, or
    /// what shows the turnover.
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
            (Plan { pool: 1.0, ..plan.clone() }, "does not stream"),
            (Plan { steps: 0, ..plan.clone() }, "no steps"),
            (Plan { batch: 0, ..plan.clone() }, "0 streams"),
            (Plan { turnovers: vec![101.0], ..plan.clone() }, "101 %"),
            (Plan { short: plan.walk(), ..plan.clone() }, "steps do not fit in a context of"),
            (Plan { select: 0.0, ..plan }, "no share"),
        ] {
            assert!(broken.check().unwrap_err().to_string().contains(says), "{says}");
        }
    }
}
