//! ESA: ranks blocks by their mean keys and retrieves them only once every few steps (UCM's example sparse
//! attention).
//!
//! UCM retrieves with the query of a few steps before, while the blocks are loaded. Here a step that retrieves does so with its
//! own query: step 1 of a request, and every `retrieval_stride`-th after it, in which UCM's selections change too.

use kvblock::BlockSize;

use super::{
    ByDigests, DigestKind, Input, Policy, Ranking, Support, gsa::mean_key_scores, num_blocks, retrieve,
    whole_below,
};
use crate::{
    Entry, Key, Params, SelectError, Selection, SpecError,
    digest::mean_keys,
    selection::count_u32,
    spec::key,
    topk::{top_k_where, union},
};

/// Registry entry.
pub const ENTRY: Entry =
    Entry { name: "esa", aliases: &[], keys: &keys("5"), build: |p| Ok(Box::new(Esa::from_params(p)?)) };

/// Registry entry of KVStar: the selection of ESA, retrieved every eighth step.
pub const KVSTAR_ENTRY: Entry = Entry {
    name: "kvstar",
    aliases: &["KVStarMultiStep"],
    keys: &keys("8"),
    build: |p| Ok(Box::new(Esa::from_params(p)?)),
};

const fn keys(stride: &'static str) -> [Key; 6] {
    [
        key("init_window_sz", "1", "number of first blocks, always selected"),
        key("local_window_sz", "2", "number of last blocks, always selected"),
        key("min_blocks", "4", "blocks that a prompt must fill before any is dropped"),
        key("sparse_ratio", "0.3", "fraction of the blocks between the windows that is selected"),
        key(
            "retrieval_stride",
            stride,
            "steps from one retrieval to the next; those in between keep what it selected",
        ),
        key("block_size", "16", "tokens per block"),
    ]
}

/// ESA with its published parameters.
#[derive(Clone, Copy, Debug)]
pub struct Esa {
    /// Name of the registry entry, `esa` or `kvstar`.
    pub policy: &'static str,
    /// Number of first blocks that are always selected.
    pub init_window_sz: u32,
    /// Number of last blocks that are always selected.
    pub local_window_sz: u32,
    /// Number of blocks that a prompt must fill before any is dropped.
    pub min_blocks: u32,
    /// Fraction of the blocks between the windows that is selected.
    pub sparse_ratio: f64,
    /// Number of steps from one retrieval to the next.
    pub retrieval_stride: u32,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl Esa {
    /// Reads the parameters of [`ENTRY`].
    ///
    /// # Errors
    /// [`SpecError::BadValue`].
    pub fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        const WINDOWS: [&str; 2] = ["init_window_sz", "local_window_sz"];
        let [init_window_sz, local_window_sz] = WINDOWS.map(|key| p.count(key));
        let (init_window_sz, local_window_sz) = (init_window_sz?, local_window_sz?);
        if init_window_sz == 0 && local_window_sz == 0 {
            return Err(p.contradiction("a window must keep a block", &WINDOWS));
        }
        Ok(Self {
            policy: p.policy(),
            init_window_sz,
            local_window_sz,
            min_blocks: p.count("min_blocks")?,
            sparse_ratio: p.ratio("sparse_ratio")?,
            retrieval_stride: p.positive("retrieval_stride")?,
            block_size: p.block_size()?,
        })
    }

    /// Whether a prompt is long enough to drop blocks: `prompt >= block_size * min_blocks`.
    #[must_use]
    pub fn is_active(&self, prompt_tokens: usize) -> bool {
        prompt_tokens >= self.block_size.get() as usize * self.min_blocks as usize
    }

    /// Number of blocks retrieved between the windows of a prompt:
    /// `floor((ceil(prompt / bs) - init - local) * ratio)`.
    #[must_use]
    pub fn top_k(&self, prompt_tokens: usize) -> u32 {
        self.retrieved(num_blocks(prompt_tokens, self.block_size))
    }

    /// Number of blocks retrieved between the windows of `n` blocks.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the blocks")]
    fn retrieved(&self, n: u32) -> u32 {
        let range = n.saturating_sub(self.init_window_sz.saturating_add(self.local_window_sz));
        (f64::from(range) * self.sparse_ratio).floor() as u32
    }

    /// Number of blocks selected out of the `n` of a prompt that is long enough.
    fn kept(&self, n: u32) -> u32 {
        let windows = self.init_window_sz.saturating_add(self.local_window_sz).min(n);
        windows + self.retrieved(n).min(n - windows)
    }

    /// Both windows and the best blocks between them by `scores` (`[n]`), ascending.
    #[must_use]
    pub fn select_blocks(&self, scores: &[f32], prompt_tokens: usize) -> Vec<u32> {
        let n = count_u32(scores.len());
        if !self.is_active(prompt_tokens) {
            return (0..n).collect();
        }
        let in_window = |i: u32| i < self.init_window_sz || i >= n.saturating_sub(self.local_window_sz);
        let best = top_k_where(scores, self.top_k(prompt_tokens) as usize, |i| !in_window(i));
        union((0..n).filter(|&i| in_window(i)), best)
    }
}

impl Policy for Esa {
    fn name(&self) -> &'static str {
        self.policy
    }

    fn support(&self) -> Support {
        Support {
            dense_below_tokens: self.min_blocks as usize * self.block_size.get() as usize,
            ..Support::PER_QUERY
        }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        self.support().dense_below_tokens.max(whole_below(self.block_size, |n| self.kept(n)))
    }

    /// Kernels always keep the block of the last token, so a policy without a local window runs on the host.
    fn ranking(&self) -> Option<Ranking> {
        (self.local_window_sz > 0).then_some(Ranking::Digests(ByDigests {
            digest: DigestKind::Mean,
            one_set: true,
            sink_blocks: self.init_window_sz,
            recent_blocks: self.local_window_sz,
            recent_full: false,
        }))
    }

    fn retrieval_stride(&self) -> u32 {
        self.retrieval_stride
    }

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        let n = num_blocks(kv_len, self.block_size);
        if self.is_active(kv_len) { self.kept(n) } else { n }
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let (q, k, _) = input.scored(self.policy)?;
        retrieve(input, (q, k), self.block_size, self.retrieval_stride, out, |step| {
            let scores = mean_key_scores(&step.q, 0, &mean_keys(&step.k, self.block_size, input.digests));
            self.select_blocks(&scores, step.k.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    fn esa(text: &str) -> Esa {
        let spec: Spec = text.parse().unwrap();
        Esa::from_params(&Params::new("esa", ENTRY.keys, &spec.params).unwrap()).unwrap()
    }

    #[test]
    fn budgets_follow_the_example_configuration() {
        let e = esa("esa");
        assert_eq!([63, 64].map(|t| e.is_active(t)), [false, true]);
        // 13 blocks less 3 in windows, and 14 of which the last is partial.
        assert_eq!([16 * 13, 16 * 13 + 1, 16, 0].map(|t| e.top_k(t)), [3, 3, 0, 0]);
    }
}
