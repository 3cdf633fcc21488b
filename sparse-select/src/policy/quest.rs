//! Quest (arXiv 2406.10774): ranks pages (blocks) by an upper bound of their attention scores, from
//! channelwise minima and maxima.

use kvblock::BlockSize;

use super::{
    ByDigests, DigestKind, Input, Policy, QueryStep, Ranking, Support, num_blocks, select_each_query,
    whole_below,
};
use crate::{
    Entry, Heads, Params, SelectError, Selection, SpecError,
    certificate::{odds, select_mass},
    digest::{DigestFormat, MinMax},
    heads::{dot, group_mean},
    spec::key,
    topk::{top_k, top_k_where, union},
};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "quest",
    aliases: &[],
    keys: &[
        key("page_budget", "64", "pages selected, the current one included"),
        key(
            "token_budget",
            "none",
            "tokens in place of page_budget: max(3, token_budget / block_size) pages",
        ),
        key("dense_layers", "2", "number of first layers that attend to everything"),
        key("mass", "none", "attention mass to certify, such as 0.99; replaces the budget"),
        key(
            "variant",
            "quest",
            "quest: one set per KV head; offload: one set for all heads, from mean queries",
        ),
        key("topk", "8", "variant offload: number of blocks selected"),
        key("threshold_blocks", "4", "variant offload: histories of up to this many blocks are kept whole"),
        key("sink_blocks", "0", "variant offload: number of first blocks, always selected"),
        key("recent_blocks", "0", "variant offload: number of last blocks, always selected"),
        key("block_size", "16", "tokens per page"),
    ],
    build: |p| Ok(Box::new(Quest::from_params(p)?)),
};

/// Number of selected pages, and the heads that they are selected for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The pages with the highest scores, for each KV head; always includes the current page.
    Budget {
        /// Number of pages selected, the current one included.
        pages: u32,
    },
    /// Pages in the order of their bounds, until the dropped ones provably hold less than `1 - mass`.
    Mass {
        /// Attention mass certified for every query head.
        mass: f64,
    },
    /// One set for all heads, for block transfers: scores `max(q·min, q·max)` of the mean query of each
    /// group, averaged over KV heads.
    Offload {
        /// Number of blocks selected.
        topk: u32,
        /// Maximum number of blocks of histories that are kept whole.
        threshold_blocks: u32,
        /// Number of first blocks that are always selected.
        sink_blocks: u32,
        /// Number of last blocks that are always selected.
        recent_blocks: u32,
    },
}

/// Quest with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct Quest {
    /// Budget, certified mass, or the variant for offloaded caches.
    pub mode: Mode,
    /// Number of first layers that attend to everything.
    pub dense_layers: u32,
    /// Tokens per page.
    pub block_size: BlockSize,
}

impl Quest {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let block_size = p.block_size()?;
        let offload = p.choice("variant", "quest or offload", &[("quest", false), ("offload", true)])?;
        let mode = match (offload, p.optional_ratio("mass")?) {
            (true, Some(_)) => {
                return Err(
                    p.contradiction("variant=offload selects by topk, not by mass", &["variant", "mass"])
                );
            }
            (true, None) => Mode::Offload {
                topk: p.positive("topk")?,
                threshold_blocks: p.count("threshold_blocks")?,
                sink_blocks: p.count("sink_blocks")?,
                recent_blocks: p.count("recent_blocks")?,
            },
            (false, Some(mass)) => Mode::Mass { mass },
            (false, None) => Mode::Budget {
                pages: match p.optional_count("token_budget")? {
                    Some(tokens) => 3.max(tokens / block_size.get()),
                    None => p.positive("page_budget")?,
                },
            },
        };
        Ok(Self { mode, dense_layers: p.count("dense_layers")?, block_size })
    }

    fn step(&self, step: &QueryStep<'_>, digest: &MinMax) -> Vec<Vec<u32>> {
        match self.mode {
            Mode::Budget { pages } => (0..step.k.heads())
                .map(|kv| select_pages(&step.q, kv, step.k.heads(), digest, pages))
                .collect(),
            Mode::Mass { mass } => {
                (0..step.k.heads()).map(|kv| select_mass(&step.q, &step.k, kv, digest, mass).blocks).collect()
            }
            Mode::Offload { topk, threshold_blocks, sink_blocks, recent_blocks } => {
                if step.num_blocks <= threshold_blocks {
                    return vec![(0..step.num_blocks).collect()];
                }
                let scores = offload_scores(&step.q, digest, step.k.heads());
                let n = step.num_blocks;
                let forced = |i: u32| i < sink_blocks || i >= n.saturating_sub(recent_blocks);
                let kept: Vec<u32> = (0..n).filter(|&i| forced(i)).collect();
                let extra = (topk as usize).saturating_sub(kept.len());
                vec![union(kept, top_k_where(&scores, extra, |i| !forced(i)))]
            }
        }
    }
}

/// Page scores of one KV head, `[num_blocks]`: the maximum over its query heads of `Σ_d max(q_d min_d, q_d max_d)`.
#[must_use]
pub fn page_scores(q: &Heads<'_>, kv: usize, kv_heads: usize, digest: &MinMax) -> Vec<f32> {
    let group = q.heads() / kv_heads;
    let score = |page| {
        let heads = kv * group..(kv + 1) * group;
        heads.map(|h| digest.score(q.row(h, 0), page, kv)).fold(f32::NEG_INFINITY, f32::max)
    };
    (0..digest.num_blocks()).map(score).collect()
}

/// The `min(pages, n) - 1` best pages of one KV head and the current (last) page, which is not scored;
/// ascending.
#[must_use]
pub fn select_pages(q: &Heads<'_>, kv: usize, kv_heads: usize, digest: &MinMax, pages: u32) -> Vec<u32> {
    let scores = page_scores(q, kv, kv_heads, digest);
    let Some((_, earlier)) = scores.split_last() else { return Vec::new() };
    let others = (pages.max(1) as usize - 1).min(earlier.len());
    union(top_k(earlier, others), [crate::selection::count_u32(earlier.len())])
}

/// Block scores of the offload variant, `[num_blocks]`: `max(q·min, q·max)` of the mean query of each group,
/// averaged over KV heads.
#[must_use]
pub fn offload_scores(q: &Heads<'_>, digest: &MinMax, kv_heads: usize) -> Vec<f32> {
    let query = group_mean(q, kv_heads, 0);
    let score = |block| {
        let heads = query.iter().enumerate().map(|(kv, q)| {
            let (min, max) = digest.block(block, kv);
            dot(q, min).max(dot(q, max))
        });
        heads.sum::<f32>() / kv_heads as f32
    };
    (0..digest.num_blocks()).map(score).collect()
}

impl Quest {
    /// Minimum number of selected blocks, if a row has that many.
    fn least(&self) -> u32 {
        match self.mode {
            Mode::Budget { pages } => pages,
            Mode::Mass { .. } => 1,
            Mode::Offload { topk, threshold_blocks, .. } => topk.max(threshold_blocks),
        }
    }

    /// Whether the mass to certify is 1, or so close to 1 that every block must be kept.
    fn keeps_mass_of_all(&self) -> bool {
        matches!(self.mode, Mode::Mass { mass } if odds(mass).is_infinite())
    }
}

impl Policy for Quest {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        let dense_below_tokens = self.least() as usize * self.block_size.get() as usize;
        Support { dense_below_tokens, ..Support::PER_QUERY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        let least = if self.keeps_mass_of_all() { u32::MAX } else { self.least() };
        whole_below(self.block_size, |n| least.min(n))
    }

    fn keeps_all(&self, layer: Option<u32>, kv_len: usize) -> bool {
        let dense_layer = layer.is_some_and(|layer| layer < self.dense_layers);
        dense_layer || self.keeps_mass_of_all() || kv_len < self.support().dense_below_tokens
    }

    fn ranking(&self) -> Option<Ranking> {
        (!matches!(self.mode, Mode::Offload { .. })).then_some(Ranking::Digests(ByDigests {
            digest: DigestKind::MinMax,
            one_set: false,
            sink_blocks: 0,
            recent_blocks: 1,
            recent_full: false,
        }))
    }

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        let blocks = num_blocks(kv_len, self.block_size);
        if let Mode::Budget { pages } = self.mode { pages.max(1).min(blocks) } else { blocks }
    }

    fn mass(&self) -> Option<f64> {
        match self.mode {
            Mode::Mass { mass } if odds(mass).is_finite() => Some(mass),
            _ => None,
        }
    }

    fn certifies(&self) -> bool {
        !matches!(self.mode, Mode::Offload { .. })
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let dense_layer = input.layer.is_some_and(|layer| layer < self.dense_layers);
        let without_query = matches!(self.mode, Mode::Offload { .. }) && input.q.is_none();
        if dense_layer || without_query {
            out.keep_all(input.num_blocks(self.block_size));
            return Ok(());
        }
        let (q, k, _) = input.scored(ENTRY.name)?;
        // Nobody else keeps digests for the offload variant, which no kernel serves.
        let (groups, format) = match self.mode {
            Mode::Offload { .. } => (1, DigestFormat::F32),
            Mode::Budget { .. } | Mode::Mass { .. } => (k.heads(), input.digests),
        };
        let mut digest = MinMax::new(k.heads(), k.dim(), self.block_size, format);
        select_each_query(q, k, self.block_size, groups, out, |step| {
            digest.extend(&step.k);
            Ok(self.step(step, &digest))
        })
    }
}
