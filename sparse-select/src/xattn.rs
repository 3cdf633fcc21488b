//! XAttention (arXiv 2503.16428): ranks blocks by the sums of strided antidiagonals, for prefill.
//!
//! A query block and a key block form a square of the score matrix. Every `stride`-th antidiagonal of the
//! square touches every row and column, so the sum over these estimates the square at `1 / stride` of the
//! work. A softmax turns rows of such sums into probabilities, which are added up per square, and each query
//! block keeps the fewest squares that reach a given share of its mass.
//!
//! [`score`] computes the sums, [`find_blocks`] selects squares, [`estimate`] runs both over a chunk, and
//! [`bsa`] turns the result into one set of blocks for transfers.

use kvblock::BlockSize;

use crate::{
    Entry, Heads, Input, Params, Policy, SelectError, Selection, SpecError, Stage, Support,
    selection::count_u32, spec::key,
};

mod antidiagonals;
pub mod bsa;
pub mod estimate;
pub mod find_blocks;
mod query_grid;
pub mod score;

pub use antidiagonals::{Antidiagonals, Vote, prefill_chunk_size};
pub use bsa::ENTRY as BSA_ENTRY;
use estimate::{Estimator, QueryGrid};
use score::Reshape;

const MODES: &str = "inverse, slash, random, double or triple";

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "xattn",
    aliases: &["XAttention"],
    keys: &[
        key(
            "threshold",
            "0.9",
            "attention mass a query block keeps; one value, or one per query head, separated by :",
        ),
        key("stride", "8", "tokens between the antidiagonals"),
        key("block_size", "128", "tokens per block"),
        key(
            "chunk_size",
            "16384",
            "number of queries scored at a time, which bounds the memory of scores; auto: by the number of keys",
        ),
        key("norm", "1", "divisor of the scale"),
        key(
            "causal",
            "true",
            "whether the queries are the last positions of the keys; false: after all of them",
        ),
        key("select_mode", "inverse", "diagonal summed: inverse, slash, random, double or triple"),
        key("seed", "0", "seed of select_mode=random"),
    ],
    build: |p| Ok(Box::new(XAttention::from_params(p)?)),
};

/// XAttention for prefill: one set of blocks for each KV head and query block.
#[derive(Clone, Debug)]
pub struct XAttention {
    /// Scoring and thresholds.
    pub estimator: Estimator,
    /// Number of queries scored at a time; `None` for [`prefill_chunk_size`].
    pub chunk_size: Option<u32>,
    /// Whether queries see only earlier keys.
    pub causal: bool,
}

impl XAttention {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`], or a stride that does not divide the block size.
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let reshape = match p.text("select_mode") {
            "random" => Reshape::Random { seed: p.seed("seed")? },
            _ => p.choice(
                "select_mode",
                MODES,
                &[
                    ("inverse", Reshape::Inverse),
                    ("slash", Reshape::Slash),
                    ("double", Reshape::Double),
                    ("triple", Reshape::Triple),
                ],
            )?,
        };
        let chunk_size = if p.text("chunk_size") == "auto" { None } else { Some(p.positive("chunk_size")?) };
        Ok(Self {
            estimator: Estimator { norm: p.positive_number("norm")?, reshape, ..estimator(p)? },
            chunk_size,
            causal: p.flag("causal")?,
        })
    }

    /// Queries, keys and GQA group size. Only a causal policy needs the queries within the history.
    fn scored<'a>(&self, input: &Input<'a>) -> Result<(Heads<'a>, Heads<'a>, usize), SelectError> {
        if self.causal { input.scored(ENTRY.name) } else { input.scored_unmasked(ENTRY.name) }
    }
}

/// The parameters common to both policies.
fn estimator(p: &Params<'_>) -> Result<Estimator, SpecError> {
    const SHARES: &str = "a number above 0 and at most 1, or a list of them";
    let (block_size, stride) = (p.block_size()?, p.positive("stride")?);
    if !block_size.get().is_multiple_of(stride) {
        return Err(p.contradiction("block_size must be a multiple of stride", &["block_size", "stride"]));
    }
    let thresholds = p.list("threshold", SHARES, |&x: &f64| x > 0.0 && x <= 1.0)?;
    if thresholds.is_empty() {
        return Err(p.bad("threshold", SHARES));
    }
    Ok(Estimator { thresholds, stride, block_size, norm: 1.0, reshape: Reshape::Inverse })
}

impl Policy for XAttention {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support {
            prefill: true,
            decode: true,
            query: true,
            after_history: !self.causal,
            each_query: false,
            dense_below_tokens: self.block_size().get() as usize,
        }
    }

    fn block_size(&self) -> BlockSize {
        self.estimator.block_size
    }

    fn keeps_all_in_decode(&self) -> bool {
        true
    }

    // The published kernel sums antidiagonals alone. The published keep_sink and keep_recent would add nothing: block 0 is
    // always kept, and the query block's own when causal.
    fn antidiagonals(&self) -> Option<Antidiagonals> {
        let Estimator { thresholds, stride, norm, reshape, .. } = &self.estimator;
        (self.causal && *reshape == Reshape::Inverse).then(|| Antidiagonals {
            thresholds: thresholds.clone(),
            stride: *stride,
            norm: *norm,
            vote: None,
            min_queries: 0,
            chunk_size: self.chunk_size,
        })
    }

    fn head_density(&self, input: &Input<'_>) -> Result<Option<f64>, SelectError> {
        if input.stage == Stage::Decode {
            return Ok(None);
        }
        let (q, k, _) = self.scored(input)?;
        let grid = QueryGrid::new(&q, &k, self.block_size(), self.causal);
        Ok(Some(self.estimator.estimate(&q, &k, &grid, k.len())?.density(&grid)))
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.stage == Stage::Decode {
            out.keep_all(input.num_blocks(self.block_size()));
            return Ok(());
        }
        let (q, k, group) = self.scored(input)?;
        let chunk = self.chunk_size.map_or_else(|| prefill_chunk_size(k.len()), |tokens| tokens as usize);
        let grid = QueryGrid::new(&q, &k, self.block_size(), self.causal);
        let mask = self.estimator.estimate(&q, &k, &grid, chunk)?;
        let visible = |row| if self.causal { grid.first_block + row + 1 } else { mask.key_blocks() };
        out.begin_causal(
            count_u32(mask.key_blocks()),
            k.heads(),
            (0..mask.query_blocks()).map(|row| count_u32(visible(row))),
        );
        for kv in 0..k.heads() {
            for row in 0..mask.query_blocks() {
                let kept =
                    |block: usize| (kv * group..(kv + 1) * group).any(|head| mask.get(head, row, block));
                out.push_row((0..visible(row)).filter(|&block| kept(block)).map(count_u32));
            }
        }
        Ok(())
    }
}
