//! `FlashPrefill` (arXiv 2603.06199, v2 2608.19758): blocks whose mean key has a fair share of the best block's energy, for
//! prefill.
//!
//! A query block and a query head score the mean key of every block before them. The energy of a block is the sum of
//! `exp(q · mean / sqrt(dim))` over the rows of the query block, and a block is kept if it has at least `alpha` times the
//! energy of the best one. Thresholds need no sort and no sum, and the energies no softmax: its denominator is the same on
//! both sides.
//!
//! With `correction`, what a block that is left out would have given is not lost: it counts as one key and one value, the means
//! of its own, with the weight of all its tokens. Of a block whose keys are alike that is what dense attention has.

use kvblock::BlockSize;

use super::{Input, Policy, Stage, Support, block_tokens};
use crate::{
    Entry, Heads, Params, SelectError, Selection, SpecError,
    attention::{default_scale, log_sum_exp, logits},
    digest::{DigestFormat, mean_key},
    selection::count_u32,
    spec::key,
    xattn::estimate::QueryGrid,
};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "flashprefill",
    aliases: &[],
    keys: &[
        key("alpha", "0.1", "share of the largest energy that a block must have, above 0 and at most 1"),
        key("sink_blocks", "2", "number of first blocks, always selected"),
        key(
            "recent_blocks",
            "4",
            "number of blocks up to the query's own, always selected; its own is in any case",
        ),
        key("block_size", "128", "tokens per block"),
        key(
            "correction",
            "false",
            "true: the means of keys and values of blocks that are left out are attended in their place",
        ),
    ],
    build: |p| Ok(Box::new(FlashPrefill::from_params(p)?)),
};

/// Parameters with which kernels select blocks like [`FlashPrefill`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energies {
    /// Share of the largest energy that a block must have.
    pub alpha: f64,
    /// Number of first blocks that are always kept.
    pub sink_blocks: u32,
    /// Number of last blocks that are always kept, including the query block's own one. The own block is kept even if
    /// the number is 0.
    pub recent_blocks: u32,
    /// Whether a block that is left out still takes part in attention, as the mean of its keys and the mean of its
    /// values, with the weight of all its tokens. The selection is the same in both cases.
    pub correction: bool,
}

impl Energies {
    /// Whether query block `own` keeps `block`, which is not after it, whatever the energy of `block`.
    #[must_use]
    pub const fn forces(&self, block: u32, own: u32) -> bool {
        block < self.sink_blocks || block == own || own - block < self.recent_blocks
    }

    /// The blocks that a query head keeps for query block `own`, by the logarithms of the energies of the blocks before it.
    pub fn kept<'a>(&'a self, energies: &'a [f64], own: u32) -> impl Iterator<Item = bool> + 'a {
        let top = energies.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let needed = top + self.alpha.ln();
        let with_own = energies.iter().copied().chain([f64::INFINITY]);
        (0..).zip(with_own).map(move |(block, energy)| energy >= needed || self.forces(block, own))
    }
}

/// The FlashPrefill policy with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct FlashPrefill {
    /// Rule by which blocks are kept.
    pub energies: Energies,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl FlashPrefill {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        Ok(Self {
            energies: Energies {
                alpha: p.ratio("alpha")?,
                sink_blocks: p.count("sink_blocks")?,
                recent_blocks: p.count("recent_blocks")?,
                correction: p.flag("correction")?,
            },
            block_size: p.block_size()?,
        })
    }

    /// Returns the logarithms of the energies of all blocks before the query block of `head` that holds the queries
    /// `rows`. Energies are computed from the mean keys `[kv_heads, blocks, dim]`. O(rows · blocks · dim).
    #[must_use]
    pub fn log_energies(
        q: &Heads<'_>,
        head: usize,
        rows: core::ops::Range<usize>,
        means: &Heads<'_>,
    ) -> Vec<f64> {
        let kv = q.kv_head(head, means.heads());
        let scores: Vec<Vec<f64>> =
            rows.map(|t| logits(q.row(head, t), means, kv, default_scale(q.dim()))).collect();
        (0..means.len()).map(|block| log_sum_exp(scores.iter().map(|row| row[block]))).collect()
    }

    /// Whether each query head keeps each block up to its own: `[query_blocks][heads][blocks]`.
    fn kept(&self, q: &Heads<'_>, k: &Heads<'_>) -> Vec<Vec<Vec<bool>>> {
        let grid = QueryGrid::new(q, k, self.block_size, true);
        let first = k.len() - q.len();
        // Only blocks before a query block are scored, and these are full.
        let blocks = k.len() / self.block_size.get() as usize;
        let tokens = |block| block_tokens(count_u32(block), self.block_size, k.len());
        let of_head = |head| (0..blocks).flat_map(move |b| mean_key(k, head, tokens(b), DigestFormat::F32));
        let means: Vec<f32> = (0..k.heads()).flat_map(of_head).collect();
        let shape = [k.heads(), blocks, k.dim()];
        let means = Heads::new("mean keys", &means, shape).expect("a mean for each block and head");
        let of_block = |row: usize| {
            let own = grid.first_block + row;
            let tokens = tokens(own);
            let rows = tokens.start.max(first) - first..tokens.end - first;
            let of_head = |head| {
                let energies = Self::log_energies(q, head, rows.clone(), &means.window(0, own));
                self.energies.kept(&energies, count_u32(own)).collect()
            };
            (0..q.heads()).map(of_head).collect()
        };
        (0..grid.query_blocks(self.block_size)).map(of_block).collect()
    }
}

impl Policy for FlashPrefill {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        let forced = self.energies.sink_blocks.saturating_add(self.energies.recent_blocks.max(1));
        Support {
            prefill: true,
            decode: true,
            query: true,
            after_history: false,
            each_query: false,
            dense_below_tokens: (forced as usize).saturating_mul(self.block_size.get() as usize),
        }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn keeps_all_in_decode(&self) -> bool {
        true
    }

    fn energies(&self) -> Option<Energies> {
        Some(self.energies)
    }

    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        if input.stage == Stage::Decode {
            return Ok(None);
        }
        let (q, k, _) = input.scored(ENTRY.name)?;
        let kept = self.kept(&q, &k);
        let blocks = kept.iter().flatten().flatten();
        let visible = blocks.clone().count();
        let share = blocks.filter(|kept| **kept).count() as f64 / visible as f64;
        Ok((visible > 0).then_some(share))
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.stage == Stage::Decode {
            out.keep_all(input.num_blocks(self.block_size));
            return Ok(());
        }
        let (q, k, group) = input.scored(ENTRY.name)?;
        let kept = self.kept(&q, &k);
        let visible = kept.iter().map(|heads| count_u32(heads[0].len()));
        out.begin_causal(input.num_blocks(self.block_size), k.heads(), visible);
        for kv in 0..k.heads() {
            for heads in &kept {
                let any = |block: &usize| heads[kv * group..(kv + 1) * group].iter().any(|head| head[*block]);
                out.push_row((0..heads[0].len()).filter(any).map(count_u32));
            }
        }
        Ok(())
    }
}
