//! Selections of one policy from step to step, and the turnover in them.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::bench::percentiles::Percentiles;

/// Steps back within which a block counts as kept.
pub(super) const WINDOWS: [u32; 3] = [1, 4, 16];

/// Turnover of a policy: shares of a step's blocks that earlier steps did not select. A block that begins with the step
/// counts as well.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Turnover {
    /// Mean number of blocks of a list, over steps, layers and heads.
    pub(super) blocks: f64,
    /// Selected blocks divided by the visible ones.
    pub(super) density: f64,
    /// Share of a step's blocks that the previous step did not select: mean over steps, layers and heads.
    pub(super) mean: f64,
    /// Median of the share of a step's blocks that the previous step did not select.
    pub(super) p50: f64,
    /// 90th percentile of the share of a step's blocks that the previous step did not select.
    pub(super) p90: f64,
    /// Mean share of a step's blocks that none of the 4 steps before selected.
    pub(super) last_4: f64,
    /// Mean share of a step's blocks that none of the 16 steps before selected.
    pub(super) last_16: f64,
    /// Mean share of a step's blocks that the previous step did not select, `[layers][heads]`. If heads share a
    /// selection, there is one value for all of them; a layer that does not select has none.
    pub(super) layers: Vec<Vec<f64>>,
}

/// Selections of a policy by layer and head.
#[derive(Debug, Default)]
pub(super) struct History {
    heads: BTreeMap<(u32, usize), Head>,
    blocks: f64,
    visible: f64,
    lists: u32,
}

/// Selections of one head.
#[derive(Debug, Default)]
struct Head {
    /// Number of steps so far.
    steps: u32,
    /// The last step that selected each block, counted from 1 on.
    last: HashMap<u32, u32>,
    /// By window: the share of each step's blocks that was not selected within the window, for steps with a whole window
    /// before them.
    shares: [Vec<f64>; WINDOWS.len()],
}

impl Head {
    fn push(&mut self, blocks: &[u32]) {
        self.steps += 1;
        let now = self.steps;
        for (window, shares) in WINDOWS.into_iter().zip(&mut self.shares) {
            if now > window && !blocks.is_empty() {
                let kept = |block: &&u32| self.last.get(block).is_some_and(|last| now - last <= window);
                let new = blocks.len() - blocks.iter().filter(kept).count();
                shares.push(new as f64 / blocks.len() as f64);
            }
        }
        self.last.extend(blocks.iter().map(|block| (*block, now)));
    }
}

impl History {
    /// Adds the selection of a step with `visible` blocks.
    pub(super) fn push(&mut self, layer: u32, head: usize, blocks: &[u32], visible: u32) {
        self.blocks += blocks.len() as f64;
        self.visible += f64::from(visible);
        self.lists += 1;
        self.heads.entry((layer, head)).or_default().push(blocks);
    }

    /// The turnover so far.
    pub(super) fn turnover(&self) -> Turnover {
        let shares = |window: usize| {
            self.heads.values().flat_map(|head| &head.shares[window]).copied().collect::<Vec<f64>>()
        };
        let Percentiles { p50, p90, .. } = Percentiles::of(shares(0));
        let mut layers: Vec<Vec<f64>> = Vec::new();
        for ((layer, _), head) in &self.heads {
            layers.resize(layers.len().max(*layer as usize + 1), Vec::new());
            layers[*layer as usize].push(mean(&head.shares[0]));
        }
        Turnover {
            blocks: self.blocks / f64::from(self.lists.max(1)),
            density: if self.visible > 0.0 { self.blocks / self.visible } else { 1.0 },
            mean: mean(&shares(0)),
            p50,
            p90,
            last_4: mean(&shares(1)),
            last_16: mean(&shares(2)),
            layers,
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len() as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The definition: steps are sets, and a block is new if none of the earlier sets has it.
    fn naive(steps: &[BTreeSet<u32>], window: usize) -> f64 {
        let new = |at: usize| {
            let before: BTreeSet<u32> = steps[at - window..at].iter().flatten().copied().collect();
            steps[at].difference(&before).count() as f64 / steps[at].len() as f64
        };
        let shares: Vec<f64> = (window..steps.len()).map(new).collect();
        shares.iter().sum::<f64>() / shares.len() as f64
    }

    proptest! {
        #[test]
        fn shares_are_those_of_the_definition(
            steps in prop::collection::vec(prop::collection::btree_set(0u32..24, 1..12), 17..40),
        ) {
            let mut history = History::default();
            for step in &steps {
                history.push(3, 0, &step.iter().copied().collect::<Vec<_>>(), 24);
            }
            let turnover = history.turnover();
            let windows = WINDOWS.map(|window| naive(&steps, window as usize));
            for (share, expected) in [turnover.mean, turnover.last_4, turnover.last_16].into_iter().zip(windows) {
                prop_assert!((share - expected).abs() < 1e-12, "{share} {expected}");
            }
            let blocks = steps.iter().map(BTreeSet::len).sum::<usize>() as f64;
            prop_assert!((turnover.density - blocks / (24 * steps.len()) as f64).abs() < 1e-12);
            prop_assert_eq!(turnover.layers.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 0, 1]);
        }
    }

    #[test]
    fn what_never_changes_turns_over_nothing() {
        let mut history = History::default();
        for step in 0..20 {
            history.push(0, 0, &[0, 5, 7], 8);
            history.push(0, 1, &[step], 20);
        }
        let turnover = history.turnover();
        assert_eq!(turnover.layers, [[0.0, 1.0]]);
        assert_eq!((turnover.mean, turnover.p50, turnover.p90, turnover.last_16), (0.5, 0.0, 1.0, 0.5));
    }
}
