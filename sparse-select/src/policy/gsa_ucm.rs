//! GSA as shipped by UCM: a bounded top-k by mean keys, in decode and for long prompts only.
//!
//! UCM computes the top-k concurrently with the following steps, and attends to the ends of the prompt until the first result
//! is ready. Here a step that computes it attends to it, and the steps up to the next keep it.

use kvblock::BlockSize;

use super::{
    ByDigests, Deployment, DigestKind, Input, Policy, Ranking, Stage, Support, gsa::mean_key_scores,
    least_that_drops, num_blocks, retrieve,
};
use crate::{
    Entry, Params, SelectError, Selection, SpecError,
    digest::mean_keys,
    selection::count_u32,
    spec::key,
    topk::{top_k_where, union},
};

/// Block size of the published constants; for other sizes they are scaled by `ceil(x * 128 / block_size)`.
const REFERENCE_BLOCK: u32 = 128;
/// Number of last blocks that the top-k takes before any others.
const END_WINDOW: u32 = 2;

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "gsa-ucm",
    aliases: &[],
    keys: &[
        key("sparse_ratio", "0.3", "fraction of the prompt's blocks that is selected, before the bounds"),
        key("min_topk", "32", "minimum number of blocks selected, at block size 128"),
        key("max_topk", "48", "maximum number of blocks selected, at block size 128"),
        key("init_window_sz", "1", "number of first blocks, always selected, at block size 128"),
        key(
            "num_prefetch_blocks",
            "1",
            "blocks fetched ahead beside the selected ones, of contexts that live on the host, at block size 128",
        ),
        key("retrieval_stride", "3", "steps from one top-k to the next; those in between keep it"),
        key("seg_prefill_threshold", "8400", "prompts of at most this many tokens stay dense"),
        key("block_size", "128", "tokens per block"),
    ],
    build: |p| Ok(Box::new(GsaUcm::from_params(p)?)),
};

/// GSA with UCM's constants, scaled to the block size.
#[derive(Clone, Copy, Debug)]
pub struct GsaUcm {
    /// Fraction of the prompt's blocks that is selected, before the bounds.
    pub sparse_ratio: f64,
    /// Minimum number of blocks selected.
    pub min_topk: u32,
    /// Maximum number of blocks selected.
    pub max_topk: u32,
    /// Number of first blocks that are always selected.
    pub init_window: u32,
    /// Number of blocks fetched ahead in addition to the selected ones.
    pub prefetch_blocks: u32,
    /// Number of steps from one top-k to the next.
    pub retrieval_stride: u32,
    /// Maximum number of tokens of prompts that stay dense.
    pub seg_prefill_threshold: u32,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl GsaUcm {
    /// Reads the parameters of [`ENTRY`] and scales the block counts.
    ///
    /// # Errors
    /// [`SpecError::BadValue`], or bounds that contradict each other.
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let block_size = p.block_size()?;
        let scaled = |count: u32| {
            let scaled =
                (u64::from(count) * u64::from(REFERENCE_BLOCK)).div_ceil(u64::from(block_size.get()));
            u32::try_from(scaled).unwrap_or(u32::MAX)
        };
        let policy = Self {
            sparse_ratio: p.ratio("sparse_ratio")?,
            min_topk: scaled(p.positive("min_topk")?),
            max_topk: scaled(p.positive("max_topk")?),
            init_window: scaled(p.count("init_window_sz")?),
            prefetch_blocks: scaled(p.count("num_prefetch_blocks")?),
            seg_prefill_threshold: p.count("seg_prefill_threshold")?,
            retrieval_stride: p.positive("retrieval_stride")?,
            block_size,
        };
        if policy.min_topk > policy.max_topk {
            return Err(p.contradiction("min_topk must not exceed max_topk", &["min_topk", "max_topk"]));
        }
        Ok(policy)
    }

    /// Number of blocks selected out of the `n` of a prompt: `ceil(0.3 n)`, at least `min(min_topk, n)`, at
    /// most `max_topk`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of n")]
    pub fn topk_len(&self, n: u32) -> u32 {
        match (f64::from(n) * self.sparse_ratio).ceil() as u32 {
            few if few < self.min_topk => self.min_topk.min(n),
            many => many.min(self.max_topk),
        }
    }

    /// Number of blocks with a representative that a step over `n` blocks keeps. A budget smaller than the
    /// blocks at the ends is raised, so that these are always kept.
    fn kept(&self, n: u32) -> u32 {
        match self.topk_len(n) {
            0 => 0,
            k => k.max(self.ends()),
        }
    }

    /// Number of tokens below which a step keeps all blocks because its budget has room for them: only full blocks are ranked.
    fn budget_below(&self) -> usize {
        let kept = |full: u32| if full <= self.ends() { full } else { self.kept(full) };
        let full = least_that_drops(kept).unwrap_or(u32::MAX);
        full as usize * self.block_size.get() as usize
    }

    /// Number of blocks at both ends that the top-k takes before any others.
    fn ends(&self) -> u32 {
        self.init_window.saturating_add(END_WINDOW)
    }

    /// Whether a decoding request with this prompt drops blocks.
    #[must_use]
    pub const fn is_active(&self, prompt_tokens: usize) -> bool {
        prompt_tokens > self.seg_prefill_threshold as usize
    }

    /// Top-k of the scored (full) blocks: both ends first, then by score. All blocks if there are no more
    /// than the ends or `k`, or if `k` is 0.
    #[must_use]
    pub fn top_k(&self, scores: &[f32], k: u32) -> Vec<u32> {
        let n = count_u32(scores.len());
        if n <= self.ends() || k >= n || k == 0 {
            return (0..n).collect();
        }
        let at_end = |i: u32| i < self.init_window || i + END_WINDOW >= n;
        let ends: Vec<u32> = (0..n).filter(|&i| at_end(i)).take(k as usize).collect();
        let rest = top_k_where(scores, k as usize - ends.len(), |i| !at_end(i));
        union(ends, rest)
    }
}

impl Policy for GsaUcm {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support { dense_below_tokens: self.seg_prefill_threshold as usize + 1, ..Support::PER_QUERY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        self.support().dense_below_tokens.max(self.budget_below())
    }

    fn ranking(&self) -> Option<Ranking> {
        Some(Ranking::Digests(ByDigests {
            digest: DigestKind::Mean,
            one_set: true,
            sink_blocks: self.init_window,
            recent_blocks: END_WINDOW,
            recent_full: true,
        }))
    }

    fn retrieval_stride(&self) -> u32 {
        self.retrieval_stride
    }

    fn deployment(&self) -> Deployment {
        Deployment::default().ahead_blocks(self.prefetch_blocks)
    }

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        let blocks = num_blocks(kv_len, self.block_size);
        let full = count_u32(kv_len) / self.block_size.get();
        let topk = self.kept(blocks);
        if !self.is_active(kv_len) || full <= self.ends() || topk >= full || topk == 0 {
            return blocks;
        }
        // A partial last block has no representative and comes on top.
        topk + (blocks - full)
    }

    /// Dense in prefill and for short prompts. A partial last block has no representative but is selected, since it is the
    /// current block.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.stage != Stage::Decode || !self.is_active(input.kv_len) {
            out.keep_all(input.num_blocks(self.block_size));
            return Ok(());
        }
        let (q, k, _) = input.scored(ENTRY.name)?;
        retrieve(input, (q, k), self.block_size, self.retrieval_stride, out, |step| {
            let full = step.k.len() - step.k.len() % self.block_size.get() as usize;
            let representatives = mean_keys(&step.k.window(0, full), self.block_size, input.digests);
            let best = self.top_k(&mean_key_scores(&step.q, 0, &representatives), self.kept(step.num_blocks));
            union(best, step.num_blocks.checked_sub(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    fn ucm(text: &str) -> GsaUcm {
        let spec: Spec = text.parse().unwrap();
        GsaUcm::from_params(&Params::new("gsa-ucm", ENTRY.keys, &spec.params).unwrap()).unwrap()
    }

    #[test]
    fn constants_scale_with_the_block() {
        let at = |block| {
            let u = ucm(&format!("gsa-ucm:block_size={block}"));
            [u.min_topk, u.max_topk, u.init_window, u.prefetch_blocks]
        };
        assert_eq!(at(128), [32, 48, 1, 1]);
        assert_eq!(at(16), [256, 384, 8, 8]);
        assert_eq!(at(192), [22, 32, 1, 1]);
        let lengths = [10, 31, 32, 100, 110, 160, 161, 1000].map(|n| ucm("gsa-ucm").topk_len(n));
        assert_eq!(lengths, [10, 31, 32, 32, 33, 48, 48, 48]);
    }

    #[test]
    fn ends_come_first_and_ties_go_low() {
        let u = ucm("gsa-ucm");
        let scores = [0.0, 1.0, 5.0, 2.0, 2.0, 2.0, 0.0, -1.0];
        assert_eq!(u.top_k(&scores, 5), [0, 2, 3, 6, 7]);
        assert_eq!(u.top_k(&scores, 3), [0, 6, 7]);
        assert_eq!(u.top_k(&scores, 2), [0, 6]);
        assert_eq!(u.top_k(&scores, 0).len(), 8);
        assert_eq!(u.top_k(&scores[..3], 1), [0, 1, 2]);
    }
}
