//! XAttention-BSA: which blocks of an offloaded history a prefill chunk needs, one set for all heads.
//!
//! Every query head selects blocks as in XAttention, but without a mask, because the history lies before the
//! chunk. A KV head votes for a block in a query block if any of its query heads selects it. A block is
//! selected if more than half of all (KV head, query block) pairs vote for it, or any, or all of them. The
//! first and the last block are always selected.
//!
//! The published kernel scores tiles of 128 strides, and chunks of fewer queries than one attend to everything. Here what queries
//! there are are scored, padding for nothing: chunks of whole tiles select what the published ones do, and short ones select too.

use kvblock::BlockSize;

use super::{
    Antidiagonals, Vote,
    estimate::{Estimator, QueryGrid},
};
use crate::{
    Entry, Heads, Input, Params, Policy, SelectError, Selection, SpecError, Stage, Support, spec::key,
    topk::union,
};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "xattn-bsa",
    aliases: &["XAttentionBSA"],
    keys: &[
        key(
            "threshold",
            "0.95",
            "attention mass a query block keeps; one value, or one per query head, separated by :",
        ),
        key("stride", "8", "tokens between the antidiagonals"),
        key("chunk_size", "16384", "number of queries scored at a time, which bounds the memory of scores"),
        key("block_size", "128", "tokens per history block"),
        key(
            "vote",
            "majority",
            "(KV head, query block) pairs that must want a block: any, all, or majority (more than half)",
        ),
    ],
    build: |p| Ok(Box::new(XAttentionBsa::from_params(p)?)),
};

/// XAttention-BSA with its published parameters. Prefill only.
#[derive(Clone, Debug)]
pub struct XAttentionBsa {
    /// Scoring and thresholds.
    pub estimator: Estimator,
    /// Number of queries scored at a time.
    pub chunk_size: u32,
    /// Vote by which the (KV head, query block) pairs agree.
    pub vote: Vote,
}

impl XAttentionBsa {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`], or a stride that does not divide the block size.
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let votes = [("any", Vote::Any), ("majority", Vote::Majority), ("all", Vote::All)];
        Ok(Self {
            estimator: super::estimator(p)?,
            chunk_size: p.positive("chunk_size")?,
            vote: p.choice("vote", "any, majority or all", &votes)?,
        })
    }

    /// The blocks of the history `k` that the chunk `q` needs, ascending; all of them if the chunk has fewer than `stride`
    /// queries, which no antidiagonal covers.
    ///
    /// Only query blocks with a real query vote. (The published code pads the chunk to a multiple of
    /// `128 * stride` and lets the padding vote, for block 0 alone, so that its result depends on the
    /// padding.)
    ///
    /// # Errors
    /// When the shapes do not match, or the number of thresholds is wrong.
    pub fn select_blocks(&self, q: &Heads<'_>, k: &Heads<'_>) -> Result<Vec<u32>, SelectError> {
        let group = crate::heads::gqa_group(q, k)?;
        let n = crate::blocks::num_blocks(k.len(), self.estimator.block_size);
        if n == 0 || q.len() < self.min_queries() {
            return Ok((0..n).collect());
        }
        let grid = QueryGrid::new(q, k, self.estimator.block_size, false);
        let mask = self.estimator.estimate(q, k, &grid, self.chunk_size as usize)?;
        let wanted = |kv: usize, row: usize, block: u32| {
            (kv * group..(kv + 1) * group).any(|head| mask.get(head, row, block as usize))
        };
        let voters = k.heads() * mask.query_blocks();
        let is_elected = |&block: &u32| {
            let votes =
                (0..voters).filter(|v| wanted(v / mask.query_blocks(), v % mask.query_blocks(), block));
            votes.count() >= self.vote.needed(voters)
        };
        Ok(union((0..n).filter(is_elected), [0, n - 1]))
    }

    /// Number of queries below which a chunk selects everything.
    const fn min_queries(&self) -> usize {
        self.estimator.stride as usize
    }
}

impl Policy for XAttentionBsa {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support {
            prefill: true,
            decode: false,
            query: true,
            after_history: true,
            each_query: false,
            dense_below_tokens: 0,
        }
    }

    fn block_size(&self) -> BlockSize {
        self.estimator.block_size
    }

    fn antidiagonals(&self) -> Option<Antidiagonals> {
        let Estimator { thresholds, stride, norm, .. } = &self.estimator;
        Some(Antidiagonals {
            thresholds: thresholds.clone(),
            stride: *stride,
            norm: *norm,
            vote: Some(self.vote),
            min_queries: self.min_queries(),
            chunk_size: Some(self.chunk_size),
        })
    }

    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        let (q, k, _) = input.scored_unmasked(ENTRY.name)?;
        if k.is_empty() || q.len() < self.min_queries() {
            return Ok(None);
        }
        let grid = QueryGrid::new(&q, &k, self.block_size(), false);
        Ok(Some(self.estimator.estimate(&q, &k, &grid, self.chunk_size as usize)?.density(&grid)))
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.stage == Stage::Decode {
            return Err(SelectError::DecodeUnsupported { policy: ENTRY.name });
        }
        let (q, k, _) = input.scored_unmasked(ENTRY.name)?;
        let blocks = self.select_blocks(&q, &k)?;
        out.begin(input.num_blocks(self.block_size()), 1, 1);
        out.push_row(blocks);
        Ok(())
    }
}
