//! Random operations, each checked against sets counted from the block tables and against the contents of the
//! blocks.

use std::collections::{BTreeMap, BTreeSet};

use kvblock::v0::{
    AllocStatus, BlockSpaceConfig, BlockSpaceError, BlockSpaceManager, CopyList, Device, Ending, Preemption,
    RequestId, SeqState, Sequence, SequenceGroup, preempt,
};
use kvblock::{BlockId, BlockSize, SeqId};
use proptest::prelude::*;
use proptest::sample::Index;

use super::memory::Memory;

#[derive(Clone, Debug)]
enum Op {
    Submit { prompt_len: u32, width: u64 },
    Allocate(Index),
    Append(Index),
    Fork(Index, Index),
    SwapOut(Index),
    SwapIn(Index),
    Finish(Index, Index),
    Preempt(Index),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    prop_oneof![
        4 => (0u32..14, 1u64..4).prop_map(|(prompt_len, width)| Op::Submit { prompt_len, width }),
        5 => index().prop_map(Op::Allocate),
        16 => index().prop_map(Op::Append),
        5 => (index(), index()).prop_map(|(g, s)| Op::Fork(g, s)),
        4 => index().prop_map(Op::SwapOut),
        4 => index().prop_map(Op::SwapIn),
        3 => (index(), index()).prop_map(|(g, s)| Op::Finish(g, s)),
        2 => index().prop_map(Op::Preempt),
        1 => Just(Op::Reset),
    ]
}

fn config() -> impl Strategy<Value = BlockSpaceConfig> {
    let watermark = prop_oneof![Just(0.0), Just(0.01), Just(0.25), Just(0.5)];
    (1u32..5, 1u32..13, 0u32..9, watermark, prop::option::of(1u32..12)).prop_map(
        |(block_size, gpu, cpu, watermark, sliding_window)| {
            BlockSpaceConfig::new(BlockSize::new(block_size).unwrap(), gpu, cpu)
                .watermark(watermark)
                .sliding_window(sliding_window)
        },
    )
}

struct Machine {
    config: BlockSpaceConfig,
    space: BlockSpaceManager,
    memory: Memory,
    groups: Vec<SequenceGroup>,
    /// Every token is new, so that no sequence can read a foreign one unnoticed.
    next_token: u32,
    next_seq: u64,
}

impl Machine {
    fn new(config: BlockSpaceConfig) -> Self {
        let BlockSpaceConfig { block_size, num_gpu_blocks, num_cpu_blocks, sliding_window, .. } = config;
        Self {
            config,
            space: BlockSpaceManager::new(config).unwrap(),
            memory: Memory::new(block_size, num_gpu_blocks, num_cpu_blocks, sliding_window),
            groups: Vec::new(),
            next_token: 0,
            next_seq: 0,
        }
    }

    fn token(&mut self) -> u32 {
        self.next_token += 1;
        self.next_token
    }

    fn seq_id(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId::new(self.next_seq)
    }

    fn window_blocks(&self) -> u32 {
        self.config.sliding_window.map_or(u32::MAX, |w| w.div_ceil(self.config.block_size.get()))
    }

    /// The tables that name each block, counted from the tables alone.
    fn users(&self) -> BTreeMap<(Device, BlockId), u32> {
        let mut users = BTreeMap::new();
        for seq in self.groups.iter().flat_map(|g| g.sequences()) {
            let Some(table) = self.space.get_block_table(seq.id()) else { continue };
            for block in table.iter().collect::<BTreeSet<_>>() {
                *users.entry((table.device(), block)).or_default() += 1;
            }
        }
        users
    }

    fn free(&self, device: Device) -> u32 {
        let total =
            if device == Device::Gpu { self.config.num_gpu_blocks } else { self.config.num_cpu_blocks };
        total - u32::try_from(self.users().keys().filter(|(d, _)| *d == device).count()).unwrap()
    }

    /// Distinct blocks of the sequences of `group` that `keep` keeps.
    fn distinct(&self, group: &SequenceGroup, keep: impl Fn(SeqState) -> bool) -> u32 {
        let tables = group
            .sequences()
            .iter()
            .filter(|s| keep(s.state()))
            .filter_map(|s| self.space.get_block_table(s.id()));
        let blocks: BTreeSet<_> = tables.flat_map(|t| t.iter().map(|b| (t.device(), b))).collect();
        u32::try_from(blocks.len()).unwrap()
    }

    fn watermark(&self) -> i64 {
        let share = self.config.watermark * f64::from(self.config.num_gpu_blocks);
        (1..=self.config.num_gpu_blocks)
            .filter(|&blocks| f64::from(blocks) <= share)
            .map(i64::from)
            .max()
            .unwrap_or(0)
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Submit { prompt_len, width } => {
                let prompt: Vec<_> = (0..*prompt_len).map(|_| self.token()).collect();
                let sequences: Vec<_> = (0..*width)
                    .map(|_| Sequence::new(self.seq_id(), &prompt, self.config.block_size))
                    .collect();
                let id = RequestId::new(self.next_seq);
                self.groups.push(SequenceGroup::new(id, 0, sequences).unwrap());
            }
            Op::Reset => {
                self.space.reset();
                self.groups.clear();
                assert_eq!(self.space.allocator(Device::Gpu).num_free_blocks(), self.config.num_gpu_blocks);
            }
            _ if self.groups.is_empty() => {}
            Op::Allocate(g) => self.with_group(g, Self::allocate),
            Op::Append(g) => self.with_group(g, Self::append),
            Op::Fork(g, s) => self.with_group(g, |machine, group| machine.fork(group, s)),
            Op::SwapOut(g) => self.with_group(g, Self::swap_out),
            Op::SwapIn(g) => self.with_group(g, Self::swap_in),
            Op::Finish(g, s) => self.with_group(g, |machine, group| machine.finish(group, s)),
            Op::Preempt(g) => self.with_group(g, Self::preempt),
        }
        self.check();
    }

    /// Runs `f` on a copy of a group beside the machine and keeps the copy.
    fn with_group(&mut self, index: &Index, f: impl FnOnce(&mut Self, &mut SequenceGroup)) {
        let at = index.index(self.groups.len());
        let mut group = self.groups[at].clone();
        f(self, &mut group);
        self.groups[at] = group;
    }

    /// Runs `f` on the manager; on an error nothing may have changed.
    fn all_or_nothing<T>(
        &mut self,
        f: impl FnOnce(&mut BlockSpaceManager) -> Result<T, BlockSpaceError>,
    ) -> Result<T, BlockSpaceError> {
        let before = format!("{:?}", self.space);
        let result = f(&mut self.space);
        if result.is_err() {
            assert_eq!(before, format!("{:?}", self.space), "an error left a change behind");
        }
        result
    }

    fn allocate(&mut self, group: &mut SequenceGroup) {
        let required = group
            .in_state(SeqState::Waiting)
            .map(|s| s.num_tokens().div_ceil(self.config.block_size.get()).min(self.window_blocks()))
            .next();
        let free = self.free(Device::Gpu);
        if let Some(required) = required.map(i64::from) {
            let expected = if i64::from(self.config.num_gpu_blocks) - required < self.watermark() {
                AllocStatus::Never
            } else if i64::from(free) - required >= self.watermark() {
                AllocStatus::Ok
            } else {
                AllocStatus::Later
            };
            assert_eq!(self.space.can_allocate(group), expected);
        }
        let result = self.all_or_nothing(|space| space.allocate(group));
        match required {
            None => assert_eq!(result, Err(BlockSpaceError::NoneInState { state: SeqState::Waiting })),
            Some(needed) if needed > free => {
                assert_eq!(result, Err(BlockSpaceError::OutOfMemory { device: Device::Gpu, needed, free }));
            }
            Some(_) => {
                result.unwrap();
                let waiting: Vec<_> = group.in_state(SeqState::Waiting).cloned().collect();
                group.transition(SeqState::Waiting, SeqState::Running).unwrap();
                self.memory.write(&self.space, &waiting[0], 0);
            }
        }
    }

    /// One decode step of the group: copies first, then all new tokens.
    fn append(&mut self, group: &mut SequenceGroup) {
        let running: Vec<_> = group.in_state(SeqState::Running).map(Sequence::id).collect();
        let can = self.space.can_append_slot(group);
        assert_eq!(can, running.len() <= self.free(Device::Gpu) as usize);
        let (mut copies, mut grown) = (CopyList::new(), Vec::new());
        for id in running {
            let mut sequence = group.get(id).unwrap().clone();
            sequence.append_token(self.token());
            let (needed, free) = (self.append_need(&sequence), self.free(Device::Gpu));
            match self.all_or_nothing(|space| space.append_slot(&sequence)) {
                Ok(copy) => {
                    assert!(needed <= free, "{needed} blocks came from {free}");
                    copies.extend(copy);
                    *group.get_mut(id).unwrap() = sequence;
                    grown.push(id);
                }
                Err(error) => {
                    assert!(!can, "can_append_slot promised a slot to {id:?}");
                    assert_eq!((needed, free), (1, 0), "{error}");
                }
            }
        }
        self.memory.copy_waves(&copies);
        for id in grown {
            let sequence = group.get(id).unwrap();
            self.memory.write(&self.space, sequence, sequence.num_tokens() - 1);
        }
    }

    /// Blocks that the newest token of `sequence` takes: one, unless it falls into a block of the sequence
    /// alone.
    fn append_need(&self, sequence: &Sequence) -> u32 {
        let row: Vec<_> = self.space.get_block_table(sequence.id()).unwrap().iter().collect();
        let position = (sequence.num_tokens() - 1) / self.config.block_size.get();
        let written = match (row.get(position as usize), position.checked_sub(self.window_blocks())) {
            (Some(block), _) => Some(block),
            (None, Some(overwritten)) => row.get(overwritten as usize),
            (None, None) => None,
        };
        written.map_or(1, |block| u32::from(self.users()[&(Device::Gpu, *block)] > 1))
    }

    fn fork(&mut self, group: &mut SequenceGroup, index: &Index) {
        let parent = group.sequences()[index.index(group.sequences().len())].clone();
        let (child, free) = (self.seq_id(), self.free(Device::Gpu));
        let result = self.all_or_nothing(|space| space.fork(parent.id(), child));
        if matches!(parent.state(), SeqState::Running | SeqState::Swapped) {
            result.unwrap();
            group.add(parent.fork(child)).unwrap();
            assert_eq!(self.space.allocator(Device::Gpu).num_free_blocks(), free, "a fork takes no block");
        } else {
            assert_eq!(result, Err(BlockSpaceError::NotAllocated { seq: parent.id() }));
        }
    }

    fn swap_out(&mut self, group: &mut SequenceGroup) {
        let required = self.distinct(group, |s| !s.is_finished());
        let can = self.space.can_swap_out(group);
        assert_eq!(can, required <= self.free(Device::Cpu));
        match self.all_or_nothing(|space| space.swap_out(group)) {
            Ok(moves) => {
                self.memory.swap_out(&moves);
                group.transition(SeqState::Running, SeqState::Swapped).unwrap();
            }
            Err(BlockSpaceError::NoneInState { .. }) => assert_eq!(group.num_in_state(SeqState::Running), 0),
            Err(error) => assert!(!can, "{error}"),
        }
    }

    fn swap_in(&mut self, group: &mut SequenceGroup) {
        let swapped = group.num_in_state(SeqState::Swapped);
        let required = i64::from(self.distinct(group, |s| !s.is_finished()) + swapped);
        let status = self.space.can_swap_in(group);
        let expected = if i64::from(self.config.num_gpu_blocks) < required {
            AllocStatus::Never
        } else if i64::from(self.free(Device::Gpu)) - required >= self.watermark() {
            AllocStatus::Ok
        } else {
            AllocStatus::Later
        };
        assert_eq!(status, expected);
        match self.all_or_nothing(|space| space.swap_in(group)) {
            Ok(moves) => {
                self.memory.swap_in(&moves);
                group.transition(SeqState::Swapped, SeqState::Running).unwrap();
            }
            Err(BlockSpaceError::NoneInState { .. }) => assert_eq!(swapped, 0),
            Err(error) => assert_ne!(status, AllocStatus::Ok, "{error}"),
        }
    }

    fn finish(&mut self, group: &mut SequenceGroup, index: &Index) {
        let at = index.index(group.sequences().len());
        let id = group.sequences()[at].id();
        let sequence = group.get_mut(id).unwrap();
        if !sequence.state().is_finished() {
            sequence.set_state(SeqState::Finished(Ending::Stopped)).unwrap();
        }
        self.space.free(id);
        self.space.free(id);
    }

    fn preempt(&mut self, group: &mut SequenceGroup) {
        let (unfinished, running) = (group.num_unfinished(), group.num_in_state(SeqState::Running));
        let before = group.clone();
        match self.all_or_nothing(|space| preempt(space, group)) {
            Ok(Preemption::Recompute) => {
                assert_eq!((unfinished, group.num_in_state(SeqState::Waiting)), (1, 1))
            }
            Ok(Preemption::Swap(moves)) => {
                assert!(unfinished > 1);
                self.memory.swap_out(&moves);
            }
            Err(error) => {
                assert!(running == 0 || unfinished > 1, "{error}");
                assert_eq!(*group, before);
            }
        }
        assert!(group.num_in_state(SeqState::Running) == 0 || *group == before);
    }

    fn check(&self) {
        let users = self.users();
        for (device, total) in
            [(Device::Gpu, self.config.num_gpu_blocks), (Device::Cpu, self.config.num_cpu_blocks)]
        {
            let allocator = self.space.allocator(device);
            for block in (0..total).map(BlockId::new) {
                let expected = users.get(&(device, block)).copied().unwrap_or(0);
                assert_eq!(allocator.block(block).unwrap().ref_count, expected, "{block:?} on {device}");
            }
            assert_eq!(allocator.num_free_blocks(), self.free(device));
        }
        for sequence in self.groups.iter().flat_map(|g| g.sequences()) {
            let has_blocks = matches!(sequence.state(), SeqState::Running | SeqState::Swapped);
            assert_eq!(self.space.get_block_table(sequence.id()).is_some(), has_blocks, "{sequence:?}");
            if has_blocks {
                self.memory.assert_reads_back(&self.space, sequence, sequence.num_tokens());
            }
        }
    }
}

proptest! {
    // 100,000 operations by default.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases * 10,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_sequence_reads_its_own_tokens(config in config(), ops in prop::collection::vec(op(), 1..80)) {
        let mut machine = Machine::new(config);
        ops.iter().for_each(|op| machine.run(op));
    }
}
