//! The DSA indexer (DeepSeek-V3.2): a lightweight attention with one low-dimensional fp8 key per token
//! selects, for every query, the tokens that the main attention sees.
//!
//! [`fp8`] is the number format, [`logits`] computes the scores, [`chunk`] bounds their memory, and
//! [`transform`] turns the best positions into physical slots. Serving code also calls this "NSA"; the paper
//! of that name is implemented in [`crate::nsa`].

use kvblock::BlockSize;

use crate::{
    Deployment, Entry, Input, Params, Policy, SelectError, Selection, SpecError, Support,
    blocks::num_blocks,
    spec::key,
    topk::{top_k, union},
};

pub mod chunk;
pub mod fp8;
pub mod logits;
pub mod transform;

use fp8::ScaleFormat;
use logits::{IndexKeys, IndexQueries};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "dsa",
    aliases: &["DSAIndexer"],
    keys: &[
        key("index_topk", "2048", "tokens selected per query"),
        key(
            "index_n_heads",
            "none",
            "heads of index queries (published: 64); a model that has others is refused",
        ),
        key(
            "index_head_dim",
            "none",
            "channels per index key (published: 128); a model that has others is refused",
        ),
        key("scale_fmt", "f32", "f32: amax / 448; ue8m0: the next power of two"),
        key("block_size", "1", "tokens of the blocks that selected tokens are reported as"),
    ],
    build: |p| Ok(Box::new(Dsa::from_params(p)?)),
};

/// The DSA indexer with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct Dsa {
    /// Number of tokens selected per query.
    pub index_topk: u32,
    /// Heads of index queries and their channels, if the parameters name them.
    pub deployment: Deployment,
    /// Format of the scales of fp8 keys and queries.
    pub scale_format: ScaleFormat,
    /// Tokens per block: selected tokens are reported as the blocks that hold them.
    pub block_size: BlockSize,
}

impl Dsa {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        Ok(Self {
            index_topk: p.positive("index_topk")?,
            deployment: Deployment {
                num_heads: p.optional_count("index_n_heads")?,
                head_dim: p.optional_count("index_head_dim")?,
                ..Deployment::default().head_keys(["index_n_heads", "index_head_dim"])
            },
            scale_format: p.choice(
                "scale_fmt",
                "f32 or ue8m0",
                &[("f32", ScaleFormat::F32), ("ue8m0", ScaleFormat::Ue8m0)],
            )?,
            block_size: p.block_size()?,
        })
    }
}

impl Policy for Dsa {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support { dense_below_tokens: self.index_topk as usize, ..Support::PER_QUERY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// One set per query, for all heads. `q` holds the index queries and `k` the index keys (one head; with
    /// several, each group of query heads reads its own), both after their rotations and before quantisation.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let (q, k, _) = input.scored(ENTRY.name)?;
        let queries = IndexQueries::quantise(&q, input.gates, self.scale_format)?;
        let keys: Vec<IndexKeys> =
            (0..k.heads()).map(|kv| IndexKeys::quantise(&k, kv, self.scale_format)).collect();
        let first = k.len() - q.len();
        let n = num_blocks(k.len(), self.block_size);
        let visible = (0..q.len()).map(|t| num_blocks(first + t + 1, self.block_size));
        out.begin_causal(n, 1, visible);
        for t in 0..q.len() {
            let logits = queries.row(t, &keys, 0..first + t + 1);
            let tokens = top_k(&logits, self.index_topk as usize);
            out.push_row(union(tokens.into_iter().map(|t| t / self.block_size.get()), []));
        }
        Ok(())
    }
}
