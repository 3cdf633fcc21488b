//! GSA, as published for UCM: sinks, a local window, and the blocks with the highest scores by access history
//! and position. Scoring by mean keys, which takes the query into account, is an option.

use kvblock::BlockSize;

use super::{
    ByDigests, Deployment, DigestKind, Input, Policy, PrefetchSettings, Ranking, Support, num_blocks,
    select_each_query, whole_below,
};
use crate::{
    Entry, Heads, Params, SelectError, Selection, SpecError,
    digest::mean_keys,
    heads::{dot, group_mean},
    spec::key,
    topk::{largest, top_k_where, union},
};

/// Registry entry. The keys are named as in the published section `ucm_sparse_config.GSA`.
pub const ENTRY: Entry = Entry {
    name: "gsa",
    aliases: &[],
    keys: &[
        key("sparse_ratio", "0.3", "fraction of the blocks that is selected"),
        key("local_window_sz", "2", "number of last blocks, always selected"),
        key("init_window_sz", "1", "number of first blocks, always selected"),
        key("min_blocks", "4", "minimum number of blocks selected"),
        key("prefetch_workers", "4", "threads of the prefetch engine"),
        key("max_pending_prefetch", "64", "maximum number of queued prefetches"),
        key("prefetch_ahead", "2", "batches ahead of the current step that may be prefetched"),
        key(
            "prefetch_cache_size",
            "1000",
            "maximum number of prefetched blocks kept; the least recently used is dropped",
        ),
        key("head_dim", "none", "channels per query head; a model that has others is refused"),
        key("num_heads", "none", "query heads; a model that has others is refused"),
        key("block_size", "16", "tokens per block"),
        key("scoring", "history", "history: accesses and position; mean_k: query against mean keys"),
    ],
    build: |p| Ok(Box::new(Gsa::from_params(p)?)),
};

/// Ranking of the blocks that are not required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// `0.5 * accesses + linspace(0.1, 1.0, n)`: known to a scheduler, reads no tensor.
    History,
    /// Dot product of the mean query of each GQA group with the mean key of the block, summed over KV heads.
    MeanK,
}

/// GSA with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct Gsa {
    /// Fraction of the blocks that is selected.
    pub sparse_ratio: f64,
    /// Number of last blocks that are always selected.
    pub local_window_sz: u32,
    /// Number of first blocks that are always selected.
    pub init_window_sz: u32,
    /// Minimum number of blocks selected.
    pub min_blocks: u32,
    /// Settings of the engine around the policy.
    pub deployment: Deployment,
    /// Ranking of the blocks that are not required.
    pub scoring: Scoring,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl Gsa {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        const LEAST: [&str; 3] = ["min_blocks", "init_window_sz", "local_window_sz"];
        let [min_blocks, init_window_sz, local_window_sz] = LEAST.map(|key| p.count(key));
        let (min_blocks, init_window_sz, local_window_sz) = (min_blocks?, init_window_sz?, local_window_sz?);
        if min_blocks == 0 && init_window_sz == 0 && local_window_sz == 0 {
            return Err(p.contradiction("min_blocks or a window must keep a block", &LEAST));
        }
        Ok(Self {
            sparse_ratio: p.ratio("sparse_ratio")?,
            local_window_sz,
            init_window_sz,
            min_blocks,
            deployment: deployment(p)?,
            scoring: p.choice(
                "scoring",
                "history or mean_k",
                &[("history", Scoring::History), ("mean_k", Scoring::MeanK)],
            )?,
            block_size: p.block_size()?,
        })
    }

    /// Number of blocks to select out of `n`: `min(max(min_blocks, floor(n * sparse_ratio)), n)`, the product
    /// in f64.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of n")]
    pub fn budget(&self, n: u32) -> u32 {
        self.min_blocks.max((f64::from(n) * self.sparse_ratio).floor() as u32).min(n)
    }

    /// Number of blocks selected out of `n`, including required blocks beyond the budget.
    fn kept(&self, n: u32) -> u32 {
        let required = self.init_window_sz.saturating_add(self.local_window_sz).min(n);
        self.budget(n).max(required)
    }

    /// Whether a block out of `n` is a sink or in the local window, and therefore selected whatever its
    /// score.
    #[must_use]
    pub const fn is_required(&self, block: u32, n: u32) -> bool {
        block < self.init_window_sz || block >= n.saturating_sub(self.local_window_sz)
    }

    /// Selects out of `n` blocks by history and position, ascending. Required blocks are kept even beyond the
    /// budget. O(n + k log k) for k selected blocks.
    #[must_use]
    pub fn select_by_history(&self, n: u32, access: &[u32]) -> Vec<u32> {
        self.with_required(n, |extra| {
            let free = (0..n).filter(|&i| !self.is_required(i, n));
            largest(free.map(|i| (history_rank(i, n, access), i)), extra)
        })
    }

    /// Selects by the given scores, `[n]`, instead of history and position.
    #[must_use]
    pub fn select_by_score(&self, scores: &[f32]) -> Vec<u32> {
        let n = crate::selection::count_u32(scores.len());
        self.with_required(n, |extra| top_k_where(scores, extra, |i| !self.is_required(i, n)))
    }

    fn with_required(&self, n: u32, top: impl FnOnce(usize) -> Vec<u32>) -> Vec<u32> {
        let required: Vec<u32> = (0..n).filter(|&i| self.is_required(i, n)).collect();
        let extra = (self.budget(n) as usize).saturating_sub(required.len());
        union(required, top(extra))
    }
}

fn deployment(p: &Params<'_>) -> Result<Deployment, SpecError> {
    let prefetch = PrefetchSettings {
        workers: p.positive("prefetch_workers")?,
        max_pending: p.positive("max_pending_prefetch")?,
        ahead: p.count("prefetch_ahead")?,
        cache_blocks: p.positive("prefetch_cache_size")?,
    };
    Ok(Deployment {
        num_heads: p.optional_count("num_heads")?,
        head_dim: p.optional_count("head_dim")?,
        prefetch: Some(prefetch),
        ..Deployment::default()
    })
}

/// The published score `0.5 * access + linspace(0.1, 1.0, n)[block]` (0.1 for n = 1).
///
/// Library only, for display: selection compares the same quantity in exact integers, so that blocks tie exactly where the
/// formula ties, not where rounding does.
#[must_use]
pub fn history_score(block: u32, n: u32, access: &[u32]) -> f64 {
    let position = if n > 1 { 0.9 * f64::from(block) / f64::from(n - 1) } else { 0.0 };
    0.5 * f64::from(access.get(block as usize).copied().unwrap_or(0)) + 0.1 + position
}

/// `history_score` times `10 (n - 1)`, without the constant term: `5 a (n - 1) + 9 i`. Saturates only at
/// counts that no sequence reaches.
fn history_rank(block: u32, n: u32, access: &[u32]) -> u64 {
    let accesses = u64::from(access.get(block as usize).copied().unwrap_or(0));
    (accesses * u64::from(n.saturating_sub(1))).saturating_mul(5).saturating_add(9 * u64::from(block))
}

/// Dot products of the mean query of each GQA group with the mean key of each block, summed over KV heads:
/// `[n]`.
#[must_use]
pub fn mean_key_scores(q: &Heads<'_>, token: usize, representatives: &[Vec<Vec<f32>>]) -> Vec<f32> {
    let kv_heads = representatives.first().map_or(1, Vec::len);
    let query = group_mean(q, kv_heads, token);
    representatives.iter().map(|block| query.iter().zip(block).map(|(q, k)| dot(q, k)).sum()).collect()
}

impl Policy for Gsa {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        let support = match self.scoring {
            Scoring::MeanK => Support::PER_QUERY,
            Scoring::History => Support::POSITIONS_ONLY,
        };
        let dense_below_tokens = self.min_blocks as usize * self.block_size.get() as usize;
        Support { dense_below_tokens, ..support }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        whole_below(self.block_size, |n| self.kept(n))
    }

    fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// Kernels always keep the block of the last token, so a policy without a local window runs on the host.
    fn ranking(&self) -> Option<Ranking> {
        (self.scoring == Scoring::MeanK && self.local_window_sz > 0).then_some(Ranking::Digests(ByDigests {
            digest: DigestKind::Mean,
            one_set: true,
            sink_blocks: self.init_window_sz,
            recent_blocks: self.local_window_sz,
            recent_full: false,
        }))
    }

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        self.kept(num_blocks(kv_len, self.block_size))
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if self.scoring == Scoring::MeanK {
            let (q, k, _) = input.scored(ENTRY.name)?;
            return select_each_query(q, k, self.block_size, 1, out, |step| {
                let representatives = mean_keys(&step.k, self.block_size, input.digests);
                Ok(vec![self.select_by_score(&mean_key_scores(&step.q, 0, &representatives))])
            });
        }
        let n = input.num_blocks(self.block_size);
        out.begin(n, 1, 1);
        out.push_row(self.select_by_history(n, input.access));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Spec;

    fn gsa(text: &str) -> Gsa {
        let spec: Spec = text.parse().unwrap();
        Gsa::from_params(&Params::new("gsa", ENTRY.keys, &spec.params).unwrap()).unwrap()
    }

    /// Section text, term by term: exact scores as fractions over `10 (n - 1)`, picked one at a time.
    fn naive(g: &Gsa, n: u32, access: &[u32]) -> Vec<u32> {
        let k = g.min_blocks.max((f64::from(n) * g.sparse_ratio).floor() as u32).min(n);
        let mut chosen: Vec<u32> =
            (0..n).filter(|&i| i < g.init_window_sz || i + g.local_window_sz >= n).collect();
        let score = |i: u32| i128::from(access[i as usize]) * 5 * i128::from(n - 1) + 9 * i128::from(i);
        while chosen.len() < k as usize {
            let left: Vec<u32> = (0..n).filter(|i| !chosen.contains(i)).collect();
            let best = left.iter().map(|&i| score(i)).max().unwrap();
            chosen.push(*left.iter().find(|&&i| score(i) == best).unwrap());
        }
        chosen.sort_unstable();
        chosen
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            access in prop::collection::vec(0u32..4, 1..40),
            init in 0u32..4, local in 0u32..5, min in 0u32..8, tenths in 1u32..=10,
        ) {
            // Three zeros would keep nothing; they are refused.
            let min = if init + local == 0 { min.max(1) } else { min };
            let g = gsa(&format!(
                "gsa:init_window_sz={init},local_window_sz={local},min_blocks={min},sparse_ratio={}",
                f64::from(tenths) / 10.0
            ));
            let n = access.len() as u32;
            prop_assert_eq!(g.select_by_history(n, &access), naive(&g, n, &access));
        }
    }

    #[test]
    fn budgets_follow_the_published_defaults() {
        let g = gsa("gsa");
        let budgets: Vec<u32> = [0, 1, 3, 4, 13, 14, 20, 100, 1000].map(|n| g.budget(n)).to_vec();
        assert_eq!(budgets, [0, 1, 3, 4, 4, 4, 6, 30, 300]);
    }

    #[test]
    fn ties_of_the_formula_go_to_the_lower_index() {
        // n = 10: one access is worth 0.5, exactly five steps of the position term, so blocks 4 and 9 tie.
        let g = gsa("gsa:init_window_sz=0,local_window_sz=0,min_blocks=1,sparse_ratio=0.1");
        let mut access = vec![0; 10];
        access[4] = 1;
        // In floating point the later block would win.
        assert!((history_score(4, 10, &access) - history_score(9, 10, &access)).abs() < 1e-15);
        assert_eq!(g.select_by_history(10, &access), [4]);
    }

    #[test]
    fn required_blocks_may_exceed_the_budget() {
        let g = gsa("gsa:init_window_sz=3,local_window_sz=9,min_blocks=1,sparse_ratio=0.1");
        assert_eq!(g.select_by_history(20, &[]).len(), 12);
        assert_eq!(g.select_by_history(5, &[]), [0, 1, 2, 3, 4]);
        assert_eq!(g.select_by_history(0, &[]), [0u32; 0]);
    }
}
