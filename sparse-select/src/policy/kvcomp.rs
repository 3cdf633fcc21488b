//! Hash retrieval (UCM's KVComp and GSAOnDevice; HATA, arXiv 2506.02572): ranks tokens by the Hamming
//! distance of binary hashes, and blocks by their nearest token.

use kvblock::BlockSize;

use super::{
    ByHashes, Input, Policy, QueryStep, Ranking, Support, block_tokens, num_blocks, select_each_query,
    whole_below,
};
use crate::{
    Entry, Heads, Params, SelectError, Selection, SpecError, heads::group_mean, spec::key, topk::top_k,
};

mod hash;
pub use hash::Projection;

const LAYERS: &str = "a list of layer indices separated by :";

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "kvcomp",
    aliases: &["GSAOnDevice"],
    keys: &[
        key("hash_bits", "128", "bits per hash"),
        key("parts", "", "channels hashed apart, separated by : (MLA: 512:64); empty hashes all together"),
        key("seed", "0", "seed of the random projection"),
        key("topk_tokens", "2048", "tokens selected, a multiple of block_size"),
        key("sink", "1", "first blocks, at distance 0"),
        key("recent", "4", "last tokens at distance 0, in blocks"),
        key("length_threshold", "2048", "histories of fewer tokens stay dense"),
        key(
            "concurrency_threshold",
            "auto",
            "steps of fewer decoding requests stay dense (published: 4); auto: as for every policy",
        ),
        key("chunk_size", "128", "tokens with a common representative, mean or min, at most a block"),
        key("representative", "max", "similarity of a chunk: max, mean or min of its tokens"),
        key(
            "layer_ratios",
            "",
            "share of the tokens for each layer, separated by :, 1 is dense; empty: topk_tokens",
        ),
        key("must_select", "0:-2:-1", "blocks always selected, negative ones from the end"),
        key("rollback_layers", "", "dense layers, separated by :"),
        key("skip_layers", "", "layers that reuse the selection of the layer before, separated by :"),
        key("block_size", "128", "tokens per block"),
    ],
    build: |p| Ok(Box::new(KvComp::from_params(p)?)),
};

/// Combination of the similarities of a chunk's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representative {
    /// Similarity of the nearest token.
    Max,
    /// Mean similarity.
    Mean,
    /// Similarity of the farthest token.
    Min,
}

/// Role of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPlan {
    /// Attends to all blocks.
    Dense,
    /// Reuses the selection of the layer before.
    Reuse,
    /// Selects.
    Select,
}

/// Hash retrieval with its published parameters.
#[derive(Clone, Debug)]
pub struct KvComp {
    /// Number of bits per hash.
    pub hash_bits: u32,
    /// Channels of each part that is hashed separately; if empty, all channels are hashed together.
    pub parts: Vec<usize>,
    /// Seed of the projection.
    pub seed: u64,
    /// Number of tokens selected, a multiple of the block size.
    pub topk_tokens: u32,
    /// Number of first blocks, which get distance 0.
    pub sink: u32,
    /// Number of last blocks, whose tokens get distance 0.
    pub recent: u32,
    /// Number of tokens below which histories stay dense.
    pub length_threshold: u32,
    /// Number of decoding requests below which steps stay dense.
    pub concurrency_threshold: u32,
    /// Number of tokens per common representative; `block_size` if representatives are of the nearest tokens.
    pub chunk_size: u32,
    /// Combination of the similarities of a chunk's tokens.
    pub representative: Representative,
    /// Fraction of the tokens selected in each layer; 1 is dense.
    pub layer_ratios: Vec<f64>,
    /// Blocks always selected; negative ones count from the end.
    pub must_select: Vec<i64>,
    /// Indices of layers that attend to all blocks.
    pub rollback_layers: Vec<u32>,
    /// Indices of layers that reuse the selection of the layer before.
    pub skip_layers: Vec<u32>,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl KvComp {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`], or parameters that contradict each other.
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let block_size = p.block_size()?;
        let concurrency_threshold = match p.text("concurrency_threshold") {
            "auto" => 1,
            _ => p.positive("concurrency_threshold")?,
        };
        let representative = p.choice(
            "representative",
            "max, mean or min",
            &[("max", Representative::Max), ("mean", Representative::Mean), ("min", Representative::Min)],
        )?;
        let policy = Self {
            hash_bits: p.positive("hash_bits")?,
            parts: p.list("parts", "a list of channel counts separated by :", |&n: &usize| n > 0)?,
            seed: p.seed("seed")?,
            topk_tokens: p.positive("topk_tokens")?,
            sink: p.count("sink")?,
            recent: p.positive("recent")?,
            length_threshold: p.count("length_threshold")?,
            concurrency_threshold,
            chunk_size: match representative {
                Representative::Max => block_size.get(),
                Representative::Mean | Representative::Min => p.positive("chunk_size")?,
            },
            representative,
            layer_ratios: p.list(
                "layer_ratios",
                "a list of shares above 0, at most 1, separated by :",
                |&x: &f64| x > 0.0 && x <= 1.0,
            )?,
            must_select: p.list("must_select", "a list of block indices separated by :", |_| true)?,
            rollback_layers: p.list("rollback_layers", LAYERS, |_| true)?,
            skip_layers: p.list("skip_layers", LAYERS, |_| true)?,
            block_size,
        };
        let size = u64::from(policy.block_size.get());
        let ends = (u64::from(policy.sink) + u64::from(policy.recent)) * size;
        if !policy.topk_tokens.is_multiple_of(policy.block_size.get()) {
            return Err(p.contradiction(
                "topk_tokens must be a multiple of block_size",
                &["topk_tokens", "block_size"],
            ));
        }
        if u64::from(policy.topk_tokens) <= ends {
            return Err(p.contradiction(
                "topk_tokens must exceed sink and recent blocks together",
                &["topk_tokens", "sink", "recent", "block_size"],
            ));
        }
        if policy.length_threshold < policy.topk_tokens {
            return Err(p.contradiction(
                "length_threshold must not be below topk_tokens",
                &["length_threshold", "topk_tokens"],
            ));
        }
        Ok(policy)
    }

    /// Returns the role of a layer.
    #[must_use]
    pub fn layer_plan(&self, layer: u32) -> LayerPlan {
        let ratio = self.layer_ratios.get(layer as usize);
        if self.rollback_layers.contains(&layer) || ratio.is_some_and(|&r| r >= 1.0) {
            LayerPlan::Dense
        } else if self.skip_layers.contains(&layer) {
            LayerPlan::Reuse
        } else {
            LayerPlan::Select
        }
    }

    /// Number of blocks selected in a layer, for a history of `kv_len` tokens.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of kv_len")]
    pub fn budget_blocks(&self, layer: Option<u32>, kv_len: usize) -> usize {
        let ratio = layer.and_then(|layer| self.layer_ratios.get(layer as usize));
        let tokens = ratio.map_or(self.topk_tokens as usize, |r| (kv_len as f64 * r).ceil() as usize);
        tokens.div_ceil(self.block_size.get() as usize)
    }

    /// Hamming distance of every cached token from the query at token 0 of `q`, the smallest over KV heads; 0
    /// for sink and recent tokens: `[kv_len]`.
    #[must_use]
    pub fn distances(&self, q: &Heads<'_>, k: &Heads<'_>) -> Vec<u32> {
        let projection = Projection::seeded(k.dim(), &self.parts, self.hash_bits, self.seed);
        let queries: Vec<Vec<u8>> =
            group_mean(q, k.heads(), 0).iter().map(|mean| projection.hash(mean)).collect();
        let size = self.block_size.get() as usize;
        let (sink, recent) = (self.sink as usize * size, self.recent as usize * size);
        let nearest = |t: usize| {
            if t < sink || t + recent >= k.len() {
                return 0;
            }
            let of_head = |(kv, q): (usize, &Vec<u8>)| hash::distance(q, &projection.hash(k.row(kv, t)));
            queries.iter().enumerate().map(of_head).min().unwrap_or(0)
        };
        (0..k.len()).map(nearest).collect()
    }

    /// The `blocks` nearest blocks by token distances (`[kv_len]`), ascending.
    #[must_use]
    pub fn select_blocks(&self, distances: &[u32], blocks: usize) -> Vec<u32> {
        let n = num_blocks(distances.len(), self.block_size);
        let mut scores: Vec<f32> = (0..n).map(|b| -self.block_distance(b, distances)).collect();
        for &index in &self.must_select {
            let at = if index < 0 { i64::from(n) + index } else { index };
            if let Some(score) = usize::try_from(at).ok().and_then(|at| scores.get_mut(at)) {
                *score = f32::INFINITY;
            }
        }
        top_k(&scores, blocks)
    }

    /// The distance of a block: the smallest distance of its chunks.
    fn block_distance(&self, block: u32, distances: &[u32]) -> f32 {
        let chunk = |tokens: &[u32]| match self.representative {
            Representative::Max => tokens.iter().copied().min().unwrap_or(u32::MAX) as f32,
            Representative::Min => tokens.iter().copied().max().unwrap_or(u32::MAX) as f32,
            Representative::Mean => tokens.iter().sum::<u32>() as f32 / tokens.len() as f32,
        };
        let tokens = &distances[block_tokens(block, self.block_size, distances.len())];
        tokens.chunks(self.chunk_size as usize).map(chunk).fold(f32::INFINITY, f32::min)
    }

    fn step(&self, step: &QueryStep<'_>, layer: Option<u32>) -> Vec<u32> {
        let budget = self.budget(layer, step.k.len());
        if budget == step.num_blocks {
            return (0..step.num_blocks).collect();
        }
        self.select_blocks(&self.distances(&step.q, &step.k), budget as usize)
    }
}

impl Policy for KvComp {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support { dense_below_tokens: self.length_threshold as usize, ..Support::PER_QUERY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        let (threshold, budget) = (self.length_threshold as usize, self.budget_blocks(None, 0));
        match self.layer_ratios.is_empty() {
            true => {
                threshold.max(whole_below(self.block_size, |n| crate::selection::count_u32(budget).min(n)))
            }
            false => threshold,
        }
    }

    fn keeps_all(&self, layer: Option<u32>, kv_len: usize) -> bool {
        layer.is_some_and(|layer| self.layer_plan(layer) == LayerPlan::Dense)
            || kv_len < self.support().dense_below_tokens
    }

    fn min_requests(&self) -> u32 {
        self.concurrency_threshold
    }

    /// Kernels take the distance of a block's nearest token (`representative=max`),
    /// hashes of whole words, and at most four forced blocks; anything else runs on the host.
    fn ranking(&self) -> Option<Ranking> {
        let must_select: Vec<i32> =
            self.must_select.iter().map(|&b| b.try_into().ok()).collect::<Option<_>>()?;
        let whole = self.hash_bits.is_multiple_of(32) && self.parts.iter().all(|part| part.is_multiple_of(8));
        let served = self.representative == Representative::Max && whole && must_select.len() <= 4;
        let tokens = |blocks: u32| blocks.checked_mul(self.block_size.get());
        let (sink_tokens, recent_tokens) = (tokens(self.sink)?, tokens(self.recent)?);
        served.then(|| {
            Ranking::Hashes(ByHashes {
                bits: self.hash_bits,
                parts: self.parts.clone(),
                seed: self.seed,
                sink_tokens,
                recent_tokens,
                must_select,
            })
        })
    }

    fn budget(&self, layer: Option<u32>, kv_len: usize) -> u32 {
        let blocks = num_blocks(kv_len, self.block_size);
        if kv_len < self.length_threshold as usize {
            return blocks;
        }
        crate::selection::count_u32(self.budget_blocks(layer, kv_len)).min(blocks)
    }

    fn reuses(&self, layer: u32) -> bool {
        self.layer_plan(layer) == LayerPlan::Reuse
    }

    /// Selects even in a layer that [reuses](Policy::reuses) a selection, since the policy does not remember
    /// one.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.layer.is_some_and(|layer| self.layer_plan(layer) == LayerPlan::Dense) {
            out.keep_all(input.num_blocks(self.block_size));
            return Ok(());
        }
        let (q, k, _) = input.scored(ENTRY.name)?;
        let hashed: usize = self.parts.iter().sum();
        if hashed != 0 && hashed != k.dim() {
            return Err(SelectError::Count { tensor: "parts", needed: k.dim(), actual: hashed });
        }
        select_each_query(q, k, self.block_size, 1, out, |step| Ok(vec![self.step(step, input.layer)]))
    }
}
