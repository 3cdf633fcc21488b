//! GSA as shipped by UCM: a bounded top-k by mean keys, in decode and for long prompts only.

use kvblock::BlockSize;

use super::{
    ByDigests, DigestKind, Input, Policy, Ranking, Stage, Support, gsa::mean_key_scores, num_blocks,
    select_each_query,
};
use crate::{
    Entry, Heads, Params, SelectError, Selection, SpecError,
    digest::mean_keys,
    heads::dot,
    selection::count_u32,
    spec::key,
    topk::{top_k_where, union},
};

/// Block size of the published constants; for other sizes they are scaled by `ceil(x * 128 / block_size)`.
const REFERENCE_BLOCK: u32 = 128;
/// Blocks at either end that the top-k takes before any others.
const START_WINDOW: u32 = 1;
const END_WINDOW: u32 = 2;
/// The top-k is computed anew in every third step.
const STEPS_PER_TOPK: u64 = 3;

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "gsa-ucm",
    aliases: &[],
    keys: &[
        key("sparse_ratio", "0.3", "fraction of the prompt's blocks that is selected, before the bounds"),
        key("min_topk", "32", "minimum number of blocks selected, at block size 128"),
        key("max_topk", "48", "maximum number of blocks selected, at block size 128"),
        key("init_window_sz", "1", "number of first blocks kept resident, at block size 128"),
        key("num_prefetch_blocks", "1", "blocks kept resident beside the selected ones, at block size 128"),
        key("seg_prefill_threshold", "8400", "prompts of at most this many tokens stay dense"),
        key("scoring", "cpu", "cpu: mean query of a group; gpu: each query head, then the mean"),
        key("block_size", "128", "tokens per block"),
    ],
    build: |p| Ok(Box::new(GsaUcm::from_params(p)?)),
};

/// Device on which upstream computes the scores; the two formulas round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Dot product of the mean query of each GQA group with the representative, summed over KV heads.
    Cpu,
    /// Dot product of each query head with the representative, averaged over query heads.
    Gpu,
}

/// GSA with UCM's constants, scaled to the block size.
#[derive(Clone, Copy, Debug)]
pub struct GsaUcm {
    /// Fraction of the prompt's blocks that is selected, before the bounds.
    pub sparse_ratio: f64,
    /// Minimum number of blocks selected.
    pub min_topk: u32,
    /// Maximum number of blocks selected.
    pub max_topk: u32,
    /// Number of first blocks kept resident.
    pub init_window: u32,
    /// Blocks kept resident in addition to the selected ones.
    pub prefetch_blocks: u32,
    /// Prompts of at most this many tokens stay dense.
    pub seg_prefill_threshold: u32,
    /// Formula of the scores.
    pub scoring: Scoring,
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
            scoring: p.choice("scoring", "cpu or gpu", &[("cpu", Scoring::Cpu), ("gpu", Scoring::Gpu)])?,
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
            k => k.max(START_WINDOW + END_WINDOW),
        }
    }

    /// Whether a decoding request with this prompt drops blocks.
    #[must_use]
    pub const fn is_active(&self, prompt_tokens: usize) -> bool {
        prompt_tokens > self.seg_prefill_threshold as usize
    }

    /// Whether this decode step starts a new top-k, given whether the previous one has finished.
    #[must_use]
    pub const fn starts_topk(&self, step: u64, previous_finished: bool) -> bool {
        previous_finished && step.is_multiple_of(STEPS_PER_TOPK)
    }

    /// The blocks of a prompt of `n` blocks that stay on the device before the first top-k: the first ones,
    /// the prefetch slots, and the tail, in ascending order.
    #[must_use]
    pub fn resident(&self, n: u32) -> Resident {
        let topk = self.topk_len(n);
        let init = self.init_window.min(topk);
        let tail = (n - (topk - init)).max(init);
        let prefetch = tail.saturating_sub(self.prefetch_blocks).max(init);
        Resident { remain: (0..init).chain(tail..n).collect(), prefetch: (prefetch..tail).collect() }
    }

    /// Number of token slots that the scheduler reserves once the prompt is done, for a sequence of `tokens`
    /// tokens: `(all - prompt + topk + p) * bs`, less the empty slots of the last block.
    #[must_use]
    pub fn reserved_slots(&self, prompt_tokens: usize, tokens: usize) -> usize {
        let (prompt, all) = (num_blocks(prompt_tokens, self.block_size), num_blocks(tokens, self.block_size));
        let topk = self.topk_len(prompt);
        let prefetch = self.prefetch_blocks.min(prompt - topk);
        let size = self.block_size.get() as usize;
        let empty = (size - tokens % size) % size;
        (all - prompt + topk + prefetch) as usize * size - empty
    }

    /// Top-k of the scored (full) blocks: both ends first, then by score. All blocks if there are no more
    /// than the ends or `k`, or if `k` is 0.
    #[must_use]
    pub fn top_k(&self, scores: &[f32], k: u32) -> Vec<u32> {
        let n = count_u32(scores.len());
        if n <= START_WINDOW + END_WINDOW || k >= n || k == 0 {
            return (0..n).collect();
        }
        let at_end = |i: u32| i < START_WINDOW || i + END_WINDOW >= n;
        let ends: Vec<u32> = (0..n).filter(|&i| at_end(i)).take(k as usize).collect();
        let rest = top_k_where(scores, k as usize - ends.len(), |i| !at_end(i));
        union(ends, rest)
    }

    fn scores(&self, q: &Heads<'_>, representatives: &[Vec<Vec<f32>>]) -> Vec<f32> {
        if self.scoring == Scoring::Cpu {
            return mean_key_scores(q, 0, representatives);
        }
        let of_block = |block: &Vec<Vec<f32>>| {
            let heads = (0..q.heads()).map(|h| dot(q.row(h, 0), &block[q.kv_head(h, block.len())]));
            heads.sum::<f32>() / q.heads() as f32
        };
        representatives.iter().map(of_block).collect()
    }
}

/// Blocks of a prompt that stay on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// First blocks and tail.
    pub remain: Vec<u32>,
    /// Blocks just before the tail, whose slots prefetched blocks will overwrite.
    pub prefetch: Vec<u32>,
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

    fn ranking(&self) -> Option<Ranking> {
        Some(Ranking::Digests(ByDigests {
            digest: DigestKind::Mean,
            one_set: true,
            sink_blocks: START_WINDOW,
            recent_blocks: END_WINDOW,
            recent_full: true,
        }))
    }

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        let blocks = num_blocks(kv_len, self.block_size);
        let full = count_u32(kv_len) / self.block_size.get();
        let topk = self.kept(blocks);
        if !self.is_active(kv_len) || full <= START_WINDOW + END_WINDOW || topk >= full || topk == 0 {
            return blocks;
        }
        // A partial last block has no representative and comes on top.
        topk + (blocks - full)
    }

    /// Dense in prefill and for short prompts. A partial last block has no representative but is selected all
    /// the same, since it is the current block.
    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if input.stage != Stage::Decode || !self.is_active(input.kv_len) {
            out.keep_all(input.num_blocks(self.block_size));
            return Ok(());
        }
        let (q, k, _) = input.scored(ENTRY.name)?;
        select_each_query(q, k, self.block_size, 1, out, |step| {
            let full = step.k.len() - step.k.len() % self.block_size.get() as usize;
            let representatives = mean_keys(&step.k.window(0, full), self.block_size, input.digests);
            let best = self.top_k(&self.scores(&step.q, &representatives), self.kept(step.num_blocks));
            Ok(vec![union(best, step.num_blocks.checked_sub(1))])
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

    #[test]
    fn resident_sets_and_reservations() {
        let u = ucm("gsa-ucm:min_topk=4,max_topk=6,num_prefetch_blocks=2");
        let r = u.resident(12);
        assert_eq!((r.remain, r.prefetch), (vec![0, 9, 10, 11], vec![7, 8]));
        assert_eq!(u.resident(3), Resident { remain: vec![0, 1, 2], prefetch: vec![] });
        // 12 prompt blocks, one generated into a 13th: 1 + 4 + 2 blocks less 127 empty slots.
        assert_eq!(u.reserved_slots(12 * 128, 12 * 128 + 1), 7 * 128 - 127);
        assert_eq!(u.reserved_slots(12 * 128, 12 * 128), 6 * 128);
        assert_eq!(u.reserved_slots(100, 100), 100);
        let starts: Vec<u64> = (0..10).filter(|&step| u.starts_topk(step, step != 6)).collect();
        assert_eq!(starts, [0, 3, 9]);
    }
}
