//! NSA (Native Sparse Attention, arXiv 2502.11089): attention over compressed keys (the first branch)
//! determines which blocks the queries of a KV head read in full (the second); a sliding window is the third. Its tokens are
//! attended together with the selected blocks, in one softmax: only models that were trained with gates weigh branches apart.
//!
//! Here, compression is the mean of a block. A model with a trained compressor passes its own probabilities
//! to [`Nsa::importance`].

use kvblock::BlockSize;

use crate::{
    Entry, Heads, Input, Params, Policy, SelectError, Selection, SpecError, Support,
    digest::{DigestFormat, mean_key},
    heads::dot,
    policy::{ByCompressed, Ranking, num_blocks, select_each_query, whole_below},
    selection::count_u32,
    spec::key,
    topk::{top_k_where, union},
};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "nsa",
    aliases: &["NativeSparseAttention"],
    keys: &[
        key("kernel_size", "32", "tokens per compressed block, a multiple of kernel_stride"),
        key("kernel_stride", "16", "tokens from one compressed block to the next"),
        key("block_size", "64", "tokens per selected block, a multiple of kernel_stride"),
        key("topk", "16", "blocks selected, init_blocks and local_blocks included"),
        key("init_blocks", "1", "number of first blocks, always selected"),
        key("local_blocks", "2", "number of last blocks, always selected"),
        key(
            "window_size",
            "512",
            "last tokens whose blocks are selected beside topk, the sliding branch; 0: none",
        ),
    ],
    build: |p| Ok(Box::new(Nsa::from_params(p)?)),
};

/// NSA with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct Nsa {
    /// Number of tokens per compressed block, `l`.
    pub kernel_size: usize,
    /// Number of tokens from one compressed block to the next, `d`.
    pub kernel_stride: usize,
    /// Tokens per selected block, `l'`.
    pub block_size: BlockSize,
    /// Number of blocks selected, `n`.
    pub topk: u32,
    /// Number of first blocks that are always selected.
    pub init_blocks: u32,
    /// Number of last blocks that are always selected.
    pub local_blocks: u32,
    /// Number of tokens of the sliding branch.
    pub window_size: u32,
}

impl Nsa {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`], or parameters that contradict each other.
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let nsa = Self {
            kernel_size: p.positive("kernel_size")? as usize,
            kernel_stride: p.positive("kernel_stride")? as usize,
            block_size: p.block_size()?,
            topk: p.positive("topk")?,
            init_blocks: p.count("init_blocks")?,
            local_blocks: p.positive("local_blocks")?,
            window_size: p.count("window_size")?,
        };
        if !nsa.kernel_size.is_multiple_of(nsa.kernel_stride) {
            return Err(p.contradiction(
                "kernel_size must be a multiple of kernel_stride",
                &["kernel_size", "kernel_stride"],
            ));
        }
        if !(nsa.block_size.get() as usize).is_multiple_of(nsa.kernel_stride) {
            return Err(p.contradiction(
                "block_size must be a multiple of kernel_stride",
                &["block_size", "kernel_stride"],
            ));
        }
        if nsa.init_blocks.saturating_add(nsa.local_blocks) > nsa.topk {
            return Err(p.contradiction(
                "topk must hold init_blocks and local_blocks",
                &["topk", "init_blocks", "local_blocks"],
            ));
        }
        Ok(nsa)
    }

    /// Number of compressed tokens that a query with `kv_len` keys, its own included, can see: those j with
    /// `j d + l <= kv_len`.
    #[must_use]
    pub fn visible_compressed(&self, kv_len: usize) -> usize {
        kv_len.checked_sub(self.kernel_size).map_or(0, |rest| rest / self.kernel_stride + 1)
    }

    /// Mean keys of the complete compressed blocks, `[kv_heads][compressed][dim]`. O(len · dim · l / d) for each head.
    #[must_use]
    pub fn compress(&self, k: &Heads<'_>, format: DigestFormat) -> Vec<Vec<Vec<f32>>> {
        let mean = |kv: usize, j: usize| {
            let first = j * self.kernel_stride;
            mean_key(k, kv, first..first + self.kernel_size, format)
        };
        let blocks = self.visible_compressed(k.len());
        (0..k.heads()).map(|kv| (0..blocks).map(|j| mean(kv, j)).collect()).collect()
    }

    /// Format in which an engine keeps compressed keys: the format of its digests if the stride consists of whole
    /// pages, and f32 otherwise.
    fn kept(&self, format: DigestFormat) -> DigestFormat {
        match format {
            DigestFormat::F16 { page } if self.kernel_stride.is_multiple_of(page.get() as usize) => format,
            _ => DigestFormat::F32,
        }
    }

    /// The weights of compressed blocks `o + (l'/d) b` in the importance of selection block b, for the
    /// offsets o from `1 - l/d` to `l'/d - 1`: the number of pairs `0 <= m < l'/d`, `0 <= n < l/d` with
    /// `m - n = o`. `[1, 2, 2, 2, 1]` for (l, d, l') = (32, 16, 64).
    #[must_use]
    pub fn overlap_weights(&self) -> Vec<u32> {
        let (kernel, block) = self.strides();
        let mut weights = vec![0; kernel + block - 1];
        for (m, n) in (0..block).flat_map(|m| (0..kernel).map(move |n| (m, n))) {
            weights[m + kernel - 1 - n] += 1;
        }
        weights
    }

    /// Importance of each of `blocks` selection blocks, from the probabilities of compressed tokens
    /// `[compressed]`.
    #[must_use]
    pub fn importance(&self, probabilities: &[f32], blocks: u32) -> Vec<f32> {
        let (kernel, block) = self.strides();
        let weights = self.overlap_weights();
        let of_block = |b: usize| {
            let terms = weights.iter().enumerate().filter_map(|(i, &w)| {
                let at = (b * block + i).checked_sub(kernel - 1)?;
                Some(w as f32 * probabilities.get(at)?)
            });
            terms.sum()
        };
        (0..blocks as usize).map(of_block).collect()
    }

    /// Number of last blocks that are always selected: the local ones, and those that the window may reach.
    #[must_use]
    pub fn recent_blocks(&self) -> u32 {
        let reached =
            self.window_size.checked_sub(1).map_or(0, |more| more.div_ceil(self.block_size.get()) + 1);
        self.local_blocks.max(reached)
    }

    /// Number of blocks selected of a long history: `topk`, and the blocks of the window that the top-k can never contain.
    #[must_use]
    pub fn selected(&self) -> u32 {
        self.topk.saturating_add(self.recent_blocks() - self.local_blocks)
    }

    /// The forced blocks and the best others by `importance` (`[blocks up to the current one]`), ascending.
    #[must_use]
    pub fn select_blocks(&self, importance: &[f32]) -> Vec<u32> {
        let n = count_u32(importance.len());
        let forced = |b: u32| b < self.init_blocks || b >= n.saturating_sub(self.recent_blocks());
        let kept: Vec<u32> = (0..n).filter(|&b| forced(b)).collect();
        let others = (self.selected() as usize).saturating_sub(kept.len());
        union(kept, top_k_where(importance, others, |b| !forced(b)))
    }

    /// Number of strides per compressed block and per selected block, `l / d` and `l' / d`.
    fn strides(&self) -> (usize, usize) {
        (self.kernel_size / self.kernel_stride, self.block_size.get() as usize / self.kernel_stride)
    }
}

/// `softmax(q · k / sqrt(dim))` over compressed keys, `[compressed]`; empty when there are none.
#[must_use]
pub fn compressed_probabilities(q: &[f32], keys: &[Vec<f32>]) -> Vec<f32> {
    let scale = 1.0 / (q.len() as f32).sqrt();
    let logits: Vec<f32> = keys.iter().map(|k| dot(q, k) * scale).collect();
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = exp.iter().sum();
    exp.into_iter().map(|x| x / sum).collect()
}

impl Policy for Nsa {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        let dense_below_tokens = self.selected() as usize * self.block_size.get() as usize;
        Support { dense_below_tokens, ..Support::PER_QUERY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        whole_below(self.block_size, |n| self.selected().min(n))
    }

    fn ranking(&self) -> Option<Ranking> {
        Some(Ranking::Compressed(ByCompressed {
            kernel_size: count_u32(self.kernel_size),
            kernel_stride: count_u32(self.kernel_stride),
            init_blocks: self.init_blocks,
            local_blocks: self.recent_blocks(),
        }))
    }

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        self.selected().min(num_blocks(kv_len, self.block_size))
    }

    /// One set per KV head: the probabilities of its query heads are summed.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let (q, k, group) = input.scored(ENTRY.name)?;
        let compressed = self.compress(&k, self.kept(input.digests));
        select_each_query(q, k, self.block_size, k.heads(), out, |step| {
            let visible = self.visible_compressed(step.k.len());
            let blocks = num_blocks(step.k.len(), self.block_size);
            let of_head = |(kv, keys): (usize, &Vec<Vec<f32>>)| {
                let mut sum = vec![0.0f32; visible];
                for head in kv * group..(kv + 1) * group {
                    let p = compressed_probabilities(step.q.row(head, 0), &keys[..visible]);
                    sum.iter_mut().zip(p).for_each(|(s, p)| *s += p);
                }
                self.select_blocks(&self.importance(&sum, blocks))
            };
            Ok(compressed.iter().enumerate().map(of_head).collect())
        })
    }
}
