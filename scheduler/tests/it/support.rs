//! A model that is a hash function: its "key and value" of a token is a hash of all tokens up to it, and the
//! token it samples is a function of that. Each block holds what was last written to it, so a plan that reads
//! a wrong, stale or unwritten block is caught at once, and every output can be computed without any
//! scheduler.
use std::collections::HashMap;

use kvblock::{
    AttentionKind, BlockId, BlockSize, GroupId, KvCacheConfig, KvCacheGroup, KvCacheSpec, KvDtype,
    LengthLimits, SeqId, TokenId, TokenIdx,
};
use scheduler::{BlockOp, Ending, Finished, HostBlockId, Load, Scheduler, Slice, StepPlan};

/// Tokens of the toy vocabulary. Small, so that equal blocks come up by chance too.
pub(crate) const VOCAB: u64 = 5;

pub(crate) fn block_size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

pub(crate) fn cache_config(
    num_blocks: u32,
    max_model_len: u32,
    groups: &[(AttentionKind, u32)],
) -> KvCacheConfig {
    let spec = |&(kind, size)| KvCacheSpec::new(kind, block_size(size), 1, 4, KvDtype::F16);
    let group = |spec| KvCacheGroup::new(spec, vec![0]);
    let limits = LengthLimits::new(max_model_len).max_batched_tokens(1);
    let uniform = KvCacheConfig::uniform(num_blocks, spec(&groups[0]), 1, limits);
    uniform.groups(groups.iter().map(spec).map(group).collect())
}

/// Content of a token's KV: depends on every token up to it.
pub(crate) fn prefix_hash(tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, &token| {
        (state ^ u64::from(token)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23) ^ 0x94d0_49bb_1331_11eb
    })
}

/// The token that follows `tokens` in sample number `sample`.
pub(crate) fn next_token(tokens: &[TokenId], sample: u64) -> TokenId {
    let state = prefix_hash(tokens) ^ sample.wrapping_mul(0x2545_f491_4f6c_dd1d);
    TokenId::try_from((state >> 33) % VOCAB).unwrap()
}

/// Block memory of all groups, and the checks of every read and write.
#[derive(Default)]
pub(crate) struct Memory {
    device: HashMap<(BlockId, u32), u64>,
    host: HashMap<(HostBlockId, u32), u64>,
    /// Loads that have not arrived yet.
    pub(crate) loads: Vec<Load>,
}

impl Memory {
    /// Runs the plan as an engine would; panics at the first wrong read. Returns the accepted tokens of each
    /// row.
    pub(crate) fn run(
        &mut self,
        scheduler: &Scheduler,
        kinds: &[(AttentionKind, u32)],
        plan: &StepPlan,
    ) -> Vec<Vec<TokenId>> {
        for op in &plan.block_ops {
            self.apply(op, kinds);
        }
        for slice in &plan.slices {
            for (group, &(kind, size)) in (0..).zip(kinds) {
                self.write_and_read(scheduler, slice, GroupId::new(group), kind, size);
            }
        }
        self.loads.extend(&plan.loads);
        let sample = |row: &scheduler::SampleRow| {
            let slice = &plan.slices[row.slice];
            verify(scheduler.tokens(slice.seq).unwrap(), &all_tokens(scheduler, slice), row.seq.get())
        };
        plan.sample_rows.iter().map(sample).collect()
    }

    /// Delivers the first `arrived` tokens of a load that is under way.
    pub(crate) fn deliver(
        &mut self,
        scheduler: &mut Scheduler,
        kinds: &[(AttentionKind, u32)],
        load: Load,
        arrived: u32,
    ) {
        let tokens = scheduler.tokens(load.seq).unwrap();
        for (group, &(_, size)) in (0..).zip(kinds) {
            let table = scheduler.block_table(load.seq, GroupId::new(group));
            for position in load.start..load.start + arrived {
                let block = table[(position / size) as usize];
                if !block.is_null() {
                    self.device.insert((block, position % size), prefix_hash(&tokens[..=position as usize]));
                }
            }
        }
        scheduler.remote_ready(load.seq, arrived);
    }

    fn apply(&mut self, op: &BlockOp, kinds: &[(AttentionKind, u32)]) {
        let offsets = |group: GroupId| 0..kinds[group.index()].1;
        match *op {
            BlockOp::Copy(copy) => {
                for offset in offsets(copy.group) {
                    move_slot(self.device.get(&(copy.source, offset)).copied(), |content| {
                        self.device.insert((copy.destination, offset), content);
                    });
                }
            }
            BlockOp::SwapOut { group, device, host } => {
                for offset in offsets(group) {
                    move_slot(self.device.get(&(device, offset)).copied(), |content| {
                        self.host.insert((host, offset), content);
                    });
                }
            }
            BlockOp::SwapIn { group, host, device } => {
                for offset in offsets(group) {
                    move_slot(self.host.get(&(host, offset)).copied(), |content| {
                        self.device.insert((device, offset), content);
                    });
                }
            }
            ref other => panic!("unknown {other:?}"),
        }
    }

    fn write_and_read(
        &mut self,
        scheduler: &Scheduler,
        slice: &Slice,
        group: GroupId,
        kind: AttentionKind,
        size: u32,
    ) {
        let tokens = all_tokens(scheduler, slice);
        let table = scheduler.block_table(slice.seq, group);
        let place = |position: u32| (table[(position / size) as usize], position % size);
        for position in slice.start..slice.end() {
            let (block, offset) = place(position);
            assert!(!block.is_null(), "{:?} writes token {position} to the null block", slice.seq);
            self.device.insert((block, offset), prefix_hash(&tokens[..=position as usize]));
        }
        for query in slice.start..slice.end() {
            for key in first_reachable(kind, query)..=query {
                let found = self.device.get(&place(key));
                let expected = prefix_hash(&tokens[..=key as usize]);
                assert_eq!(
                    found,
                    Some(&expected),
                    "{:?} reads token {key} of {group:?} at {query}",
                    slice.seq
                );
            }
        }
    }
}

/// Slots that were never written hold nothing to move.
fn move_slot(content: Option<u64>, write: impl FnOnce(u64)) {
    if let Some(content) = content {
        write(content);
    }
}

/// The drafts behind `confirmed` that the model agrees with, and the token it samples after them.
fn verify(confirmed: &[TokenId], with_drafts: &[TokenId], sample: u64) -> Vec<TokenId> {
    let mut accepted = Vec::new();
    for end in confirmed.len()..=with_drafts.len() {
        let token = next_token(&with_drafts[..end], sample);
        accepted.push(token);
        if with_drafts.get(end) != Some(&token) {
            break;
        }
    }
    accepted
}

fn all_tokens(scheduler: &Scheduler, slice: &Slice) -> Vec<TokenId> {
    let start = slice.start as usize;
    let mut tokens = scheduler.tokens(slice.seq).unwrap()[..start].to_vec();
    tokens.extend_from_slice(scheduler.slice_tokens(slice).unwrap());
    tokens
}

fn first_reachable(kind: AttentionKind, query: u32) -> u32 {
    match kind {
        AttentionKind::Full { .. } => 0,
        AttentionKind::SlidingWindow { window } => (query + 1).saturating_sub(window),
        AttentionKind::ChunkedLocal { chunk } => query / chunk * chunk,
    }
}

/// Reference counts equal occurrences in tables, and no block is lost.
pub(crate) fn check_conservation(scheduler: &Scheduler) {
    let cache = scheduler.cache();
    let mut occurrences: HashMap<BlockId, u32> = HashMap::new();
    for group in 0..cache.num_groups() {
        for (_, table) in cache.tables(GroupId::new(u32::try_from(group).unwrap())) {
            for &block in table.blocks().iter().filter(|block| !block.is_null()) {
                *occurrences.entry(block).or_default() += 1;
            }
        }
    }
    let pool = cache.pool();
    for id in (1..=pool.num_usable()).map(BlockId::new) {
        let expected = occurrences.get(&id).copied().unwrap_or(0);
        assert_eq!(pool.ref_count(id), expected, "references to {id:?}");
        assert_eq!(pool.is_free(id), expected == 0, "{id:?} in the free queue");
    }
}

/// Whether a slice computes the last tokens of its sequence.
fn is_whole(scheduler: &Scheduler, slice: &Slice) -> bool {
    slice.end() as usize >= scheduler.tokens(slice.seq).unwrap().len()
}

/// The plan keeps its own rules.
pub(crate) fn check_plan(scheduler: &Scheduler, plan: &StepPlan, budget: u32, max_num_seqs: u32) {
    assert!(plan.num_tokens() <= budget, "{} tokens of {budget}", plan.num_tokens());
    assert!(scheduler.running().len() <= max_num_seqs as usize, "{} running", scheduler.running().len());
    assert!(plan.slices.is_sorted_by_key(|slice| slice.phase), "decode slices come first");
    let mut seqs: Vec<SeqId> = plan.slices.iter().map(|slice| slice.seq).collect();
    seqs.sort_unstable();
    assert!(seqs.windows(2).all(|pair| pair[0] != pair[1]), "a sequence twice in {seqs:?}");
    for slice in &plan.slices {
        assert!(slice.len > 0);
        assert!(!plan.preempted.contains(&slice.seq), "{:?} runs and is preempted", slice.seq);
        assert!(!slice.samples || is_whole(scheduler, slice));
        let table = scheduler.cache().table(slice.seq, GroupId::new(0)).unwrap();
        assert!(table.len() * table.block_size().get() as usize >= slice.end() as usize);
        let _ = table.slot(TokenIdx::new(slice.start));
    }
}

/// Plans, runs and completes one step with all checks.
pub(crate) fn checked_step(
    scheduler: &mut Scheduler,
    memory: &mut Memory,
    kinds: &[(AttentionKind, u32)],
    (budget, max_num_seqs): (u32, u32),
) -> (StepPlan, Vec<Finished>) {
    let plan = scheduler.step();
    check_conservation(scheduler);
    check_plan(scheduler, &plan, budget, max_num_seqs);
    let verified = memory.run(scheduler, kinds, &plan);
    let verified: Vec<&[TokenId]> = verified.iter().map(Vec::as_slice).collect();
    let silent = plan.slices.iter().filter(|slice| !slice.samples && is_whole(scheduler, slice));
    let silent: Vec<SeqId> = silent.map(|slice| slice.seq).collect();
    let finished = scheduler.complete_drafts(&plan, &verified);
    for seq in silent {
        let end = finished.iter().find(|end| end.seq == seq).expect("who samples nothing has ended");
        assert!(end.output().is_empty() && end.reason == Ending::LengthCapped);
    }
    check_conservation(scheduler);
    (plan, finished)
}
