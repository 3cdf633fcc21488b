//! ESA: ranks blocks by their mean keys and retrieves them only once every few steps (UCM's example sparse
//! attention).

use std::collections::BTreeMap;

use kvblock::{BlockHash, BlockId, BlockSize};

use super::{
    ByDigests, DigestKind, Input, Policy, Ranking, Support, gsa::mean_key_scores, num_blocks,
    select_each_query,
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

/// KVStar: the same selection, retrieved every eighth step.
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
        key("retrieval_stride", stride, "steps from one retrieval to the next"),
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
    /// Blocks that a prompt must fill before any is dropped.
    pub min_blocks: u32,
    /// Fraction of the blocks between the windows that is selected.
    pub sparse_ratio: f64,
    /// In which steps to retrieve and load.
    pub cadence: Cadence,
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
            cadence: Cadence { stride: p.positive("retrieval_stride")? },
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
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the blocks")]
    pub fn top_k(&self, prompt_tokens: usize) -> u32 {
        let windows = self.init_window_sz.saturating_add(self.local_window_sz);
        let range = num_blocks(prompt_tokens, self.block_size).saturating_sub(windows);
        (f64::from(range) * self.sparse_ratio).floor() as u32
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

    /// Number of token slots that a decoding request needs: windows, retrieved blocks and all generated
    /// tokens.
    #[must_use]
    pub fn decode_slots(&self, prompt_tokens: usize, generated: usize) -> usize {
        let size = self.block_size.get() as usize;
        let local = match prompt_tokens % size {
            0 => size * self.local_window_sz as usize,
            rest => rest + size * (self.local_window_sz as usize).saturating_sub(1),
        };
        (self.init_window_sz + self.top_k(prompt_tokens)) as usize * size + local + generated
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

    fn budget(&self, _layer: Option<u32>, kv_len: usize) -> u32 {
        let n = num_blocks(kv_len, self.block_size);
        let windows = self.init_window_sz.saturating_add(self.local_window_sz).min(n);
        if self.is_active(kv_len) { windows + self.top_k(kv_len).min(n - windows) } else { n }
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let (q, k, _) = input.scored(self.policy)?;
        select_each_query(q, k, self.block_size, 1, out, |step| {
            let scores = mean_key_scores(&step.q, 0, &mean_keys(&step.k, self.block_size, input.digests));
            Ok(vec![self.select_blocks(&scores, step.k.len())])
        })
    }
}

/// In which steps a decoding request retrieves and loads. The first step is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    /// Steps from one retrieval to the next.
    pub stride: u32,
}

/// Work of a step besides attention over the resident blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Restores the windows, retrieves and loads, all before attention (step 1).
    RetrieveAndLoad,
    /// Starts a retrieval with this step's query.
    Retrieve,
    /// Starts to load the retrieved blocks.
    Load,
    /// Waits for the load; from this step on, its blocks are attended to.
    Wait,
    /// Nothing.
    Keep,
}

impl Cadence {
    /// The action of `step`. A stride below 3 leaves no room for overlap: every step retrieves and loads.
    #[must_use]
    pub const fn action(self, step: u64) -> Action {
        if step == 1 || self.stride < 3 {
            return Action::RetrieveAndLoad;
        }
        match step % self.stride as u64 {
            2 => Action::Retrieve,
            0 => Action::Load,
            1 => Action::Wait,
            _ => Action::Keep,
        }
    }
}

/// Entries of `wanted` that `resident` does not hold: the blocks to load, in ascending order.
#[must_use]
pub fn delta_loads(
    resident: &BTreeMap<BlockId, BlockHash>,
    wanted: &BTreeMap<BlockId, BlockHash>,
) -> Vec<(BlockId, BlockHash)> {
    let missing = wanted.iter().filter(|(block, hash)| resident.get(block) != Some(hash));
    missing.map(|(&block, &hash)| (block, hash)).collect()
}

/// Slots for block representatives, shared by all requests; the lowest free slot is allocated first.
#[derive(Clone, Debug, Default)]
pub struct RepresentativeSlots {
    free: std::collections::BTreeSet<u32>,
    owned: BTreeMap<u64, Vec<u32>>,
}

impl RepresentativeSlots {
    /// `count` free slots.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self { free: (0..count).collect(), owned: BTreeMap::new() }
    }

    /// Allocates `count` more slots to a request. When fewer are free, allocates none and returns false.
    pub fn allocate(&mut self, request: u64, count: usize) -> bool {
        if self.free.len() < count {
            return false;
        }
        let slots = (0..count).filter_map(|_| self.free.pop_first());
        self.owned.entry(request).or_default().extend(slots);
        true
    }

    /// The slots of a request in the order of its blocks.
    #[must_use]
    pub fn of(&self, request: u64) -> &[u32] {
        self.owned.get(&request).map_or(&[], Vec::as_slice)
    }

    /// Frees all slots of a request that finished or was preempted.
    pub fn release(&mut self, request: u64) {
        self.free.extend(self.owned.remove(&request).unwrap_or_default());
    }

    /// Number of free slots.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.free.len()
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
        assert_eq!(e.decode_slots(16 * 13, 7), 16 + 48 + 32 + 7);
        assert_eq!(e.decode_slots(16 * 13 + 5, 7), 16 + 48 + 5 + 16 + 7);
    }

    #[test]
    fn cadence_overlaps_retrieval_and_load() {
        let draw = |stride: u32| -> String {
            let letter = |step| match (Cadence { stride }).action(step) {
                Action::RetrieveAndLoad => 'X',
                Action::Retrieve => 'r',
                Action::Load => 'l',
                Action::Wait => 'w',
                Action::Keep => '.',
            };
            (1..=16).map(letter).collect()
        };
        insta::assert_snapshot!(draw(5), @"Xr..lwr..lwr..lw");
        insta::assert_snapshot!(draw(8), @"Xr.....lwr.....l");
        insta::assert_snapshot!(draw(2), @"XXXXXXXXXXXXXXXX");
    }

    #[test]
    fn only_differences_are_loaded() {
        let hash = |x: u8| BlockHash::from_bytes([x; 32]);
        let map = |entries: &[(u32, u8)]| {
            entries.iter().map(|&(block, h)| (BlockId::new(block), hash(h))).collect::<BTreeMap<_, _>>()
        };
        let loads = delta_loads(&map(&[(1, 10), (2, 20), (3, 30)]), &map(&[(1, 10), (2, 21), (4, 40)]));
        assert_eq!(loads, [(BlockId::new(2), hash(21)), (BlockId::new(4), hash(40))]);
    }

    #[test]
    fn preemption_frees_representatives() {
        let mut slots = RepresentativeSlots::new(4);
        assert!(slots.allocate(7, 2) && slots.allocate(8, 1) && !slots.allocate(9, 2));
        slots.release(7);
        assert!(slots.allocate(9, 2) && slots.allocate(8, 1));
        assert_eq!((slots.of(8), slots.of(9), slots.free_slots()), (&[2, 3][..], &[0, 1][..], 0));
    }
}
