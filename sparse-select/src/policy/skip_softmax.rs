//! Skip softmax (BLASST, arXiv 2512.12087): prefill leaves out keys whose weight cannot count.
//!
//! A query goes through its keys in order and knows the largest score so far. Keys whose scores all lie below it by more than the
//! logarithm of a threshold have little weight whatever follows: their values are not read, and nothing is added for them. The
//! threshold falls with the context, `scale / keys`, so that what is lost in all stays about the same. Nothing is selected
//! beforehand: attention kernels decide as they go.

use kvblock::BlockSize;

use super::{Input, Policy, Stage, Support, select_each_query};
use crate::{
    Entry, Params, SelectError, Selection, SpecError,
    attention::{default_scale, logits},
    spec::key,
};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "skip-softmax",
    aliases: &["blasst"],
    keys: &[
        key(
            "scale",
            "1000",
            "share of the largest weight below which keys are left out, times the keys of a query",
        ),
        key("block_size", "16", "keys that are left out together; kernels take as many as suits them"),
    ],
    build: |p| Ok(Box::new(SkipSoftmax::from_params(p)?)),
};

/// The skip-softmax policy with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct SkipSoftmax {
    /// Threshold times the number of keys: a query of n keys leaves out keys whose weight is below `scale / n` of the
    /// largest so far. Queries of up to `scale` keys leave nothing out.
    pub scale: u32,
    /// Number of keys of a block: they are left out together.
    pub block_size: BlockSize,
}

impl SkipSoftmax {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        Ok(Self { scale: p.positive("scale")?, block_size: p.block_size()? })
    }

    /// Whether a query head keeps each block of its keys, from the `scores` of the keys in the order of their
    /// positions. O(keys).
    pub fn kept<'a>(&'a self, scores: &'a [f64]) -> impl Iterator<Item = bool> + 'a {
        let below = (f64::from(self.scale) / scores.len() as f64).ln();
        let mut top = f64::NEG_INFINITY;
        scores.chunks(self.block_size.get() as usize).map(move |block| {
            let most = block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let kept = below >= 0.0 || most >= top + below;
            top = top.max(most);
            kept
        })
    }
}

impl Policy for SkipSoftmax {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support { dense_below_tokens: self.scale as usize + 1, ..Support::PER_QUERY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn keeps_all_in_decode(&self) -> bool {
        true
    }

    fn skips(&self) -> Option<u32> {
        Some(self.scale)
    }

    /// One list for each query and KV head: the blocks that any of its query heads keeps.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.stage == Stage::Decode {
            out.keep_all(input.num_blocks(self.block_size));
            return Ok(());
        }
        let (q, k, group) = input.scored(ENTRY.name)?;
        select_each_query(q, k, self.block_size, k.heads(), out, |step| {
            let of_group = |kv: usize| {
                let mut kept = vec![false; step.num_blocks as usize];
                for head in kv * group..(kv + 1) * group {
                    let scores = logits(step.q.row(head, 0), &step.k, kv, default_scale(q.dim()));
                    kept.iter_mut().zip(self.kept(&scores)).for_each(|(kept, by_head)| *kept |= by_head);
                }
                (0..).zip(kept).filter(|(_, kept)| *kept).map(|(block, _)| block).collect()
            };
            Ok((0..k.heads()).map(of_group).collect())
        })
    }
}
