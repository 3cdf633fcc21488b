//! Whole runs of the queues over random loads: all groups end, in order of arrival where they compete, and
//! read their own tokens all the way.

use std::collections::BTreeMap;

use kvblock::v0::{
    BlockSpaceConfig, BlockSpaceManager, Device, Ending, GroupQueues, RequestId, SeqState, Sequence,
    SequenceGroup, StepOps,
};
use kvblock::{BlockSize, SeqId};
use proptest::prelude::*;

use super::memory::Memory;

/// One request: prompt tokens, samples, output tokens of each sample, and whether samples branch after the
/// prefill (by forking) or before it (as waiting sequences of one prompt).
#[derive(Clone, Copy, Debug)]
struct Load {
    prompt_len: u32,
    samples: u64,
    output_len: u32,
    forks: bool,
}

fn load() -> impl Strategy<Value = Load> {
    (0u32..12, 1u64..4, 1u32..12, any::<bool>()).prop_map(|(prompt_len, samples, output_len, forks)| Load {
        prompt_len,
        samples,
        output_len,
        forks,
    })
}

struct Engine {
    space: BlockSpaceManager,
    queues: GroupQueues,
    memory: Memory,
    loads: BTreeMap<RequestId, Load>,
    next_token: u32,
    next_seq: u64,
}

impl Engine {
    fn new(config: BlockSpaceConfig, loads: &[Load]) -> Self {
        let memory = Memory::new(
            config.block_size,
            config.num_gpu_blocks,
            config.num_cpu_blocks,
            config.sliding_window,
        );
        let space = BlockSpaceManager::new(config).unwrap();
        let (queues, loads_by_id) = (GroupQueues::new(), BTreeMap::new());
        let mut engine = Self { space, queues, memory, loads: loads_by_id, next_token: 0, next_seq: 0 };
        for (id, load) in (0..).zip(loads) {
            let prompt: Vec<_> = (0..load.prompt_len).map(|_| engine.token()).collect();
            let width = if load.forks { 1 } else { load.samples };
            let sequences: Vec<_> =
                (0..width).map(|_| Sequence::new(engine.seq_id(), &prompt, config.block_size)).collect();
            engine.loads.insert(RequestId::new(id), *load);
            engine.queues.submit(SequenceGroup::new(RequestId::new(id), id, sequences).unwrap());
        }
        engine
    }

    fn token(&mut self) -> u32 {
        self.next_token += 1;
        self.next_token
    }

    fn seq_id(&mut self) -> SeqId {
        self.next_seq += 1;
        SeqId::new(self.next_seq)
    }

    fn step(&mut self, ops: &mut StepOps) {
        let had_swapped = self.queues.swapped().next().is_some();
        self.queues.step(&mut self.space, ops).unwrap();
        assert!(!had_swapped || ops.prefill.is_empty(), "a prompt overtook a swapped group");
        assert!(ops.prefill.is_empty() || ops.decode.is_empty());
        assert!(ops.swap_in.is_empty() || ops.swap_out.is_empty());
        let latest_served = self.queues.running().iter().map(SequenceGroup::arrival).max();
        for (victim, _) in &ops.preempted {
            assert!(Some(victim.get()) > latest_served, "{victim:?} gave way to a later arrival");
        }
        self.memory.swap_out(&ops.swap_out);
        self.memory.swap_in(&ops.swap_in);
        self.memory.copy_waves(&ops.copies);
        let mut running = self.queues.running().to_vec();
        for group in &mut running {
            self.run(group, ops);
        }
        self.queues.running_mut().clone_from_slice(&running);
        self.assert_contents(ops);
    }

    /// Writes the tokens of the step, then samples the next ones.
    fn run(&mut self, group: &mut SequenceGroup, ops: &StepOps) {
        let prefill = ops.prefill.contains(&group.id());
        if !prefill && !ops.decode.contains(&group.id()) {
            assert!(
                !ops.prefill.is_empty() || !ops.done.is_empty(),
                "{:?} idles in a decode step",
                group.id()
            );
            return;
        }
        let load = self.loads[&group.id()];
        let ids: Vec<_> = group.in_state(SeqState::Running).map(Sequence::id).collect();
        for &id in &ids {
            let sequence = group.get(id).unwrap();
            let newest = sequence.num_tokens().saturating_sub(1);
            self.memory.write(&self.space, sequence, if prefill { 0 } else { newest });
        }
        if load.forks && group.sequences().len() == 1 {
            for _ in 1..load.samples {
                let child = self.seq_id();
                self.space.fork(ids[0], child).unwrap();
                group.add(group.get(ids[0]).unwrap().fork(child)).unwrap();
            }
        }
        let ids: Vec<_> = group.in_state(SeqState::Running).map(Sequence::id).collect();
        for id in ids {
            let token = self.token();
            let sequence = group.get_mut(id).unwrap();
            sequence.append_token(token);
            // Samples end at different lengths, so that groups shrink to one sequence while they run.
            let output_len = load.output_len + u32::try_from(id.get() % 3).unwrap();
            if sequence.num_tokens() - sequence.prompt_len() >= output_len {
                sequence.set_state(SeqState::Finished(Ending::LengthCapped)).unwrap();
            }
        }
    }

    /// All tokens but the one just sampled are in the cache.
    fn assert_contents(&self, ops: &StepOps) {
        for group in self.queues.running().iter().chain(self.queues.swapped()) {
            for sequence in group.unfinished() {
                self.memory.assert_reads_back(&self.space, sequence, sequence.num_tokens() - 1);
            }
        }
        for sequence in ops.done.iter().flat_map(SequenceGroup::sequences) {
            assert!(
                self.space.get_block_table(sequence.id()).is_none(),
                "{:?} left with blocks",
                sequence.id()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_group_ends(
        loads in prop::collection::vec(load(), 1..8), block_size in 1u32..5, gpu in 1u32..20,
        watermark in prop_oneof![Just(0.0), Just(0.01), Just(0.3)],
        sliding_window in prop::option::of(1u32..10),
    ) {
        let block_size = BlockSize::new(block_size).unwrap();
        // Host memory for everything: a full host is an error, tested by itself.
        let config = BlockSpaceConfig::new(block_size, gpu, 800);
        let config = config.watermark(watermark).sliding_window(sliding_window);
        let mut engine = Engine::new(config, &loads);
        let (mut ops, mut done) = (StepOps::default(), BTreeMap::new());
        for step in 0.. {
            prop_assert!(step < 2000, "{} groups still there", loads.len() - done.len());
            engine.step(&mut ops);
            for group in &ops.done {
                prop_assert!(done.insert(group.id(), group.clone()).is_none());
            }
            if engine.queues.is_empty() { break; }
        }
        prop_assert_eq!(done.len(), loads.len());
        prop_assert_eq!(engine.space.allocator(Device::Gpu).num_free_blocks(), gpu);
        prop_assert_eq!(engine.space.allocator(Device::Cpu).num_free_blocks(), 800);

        // A group that could hold all its samples apart, one block to grow for each, above the watermark, is
        // served.
        let reserve = engine.space.watermark_blocks();
        for (group, load) in done.values().zip(&loads) {
            let window = config.sliding_window.map_or(u32::MAX, |w| block_size.blocks_for(w));
            let blocks = block_size.blocks_for(load.prompt_len + load.output_len + 2).min(window) + 1;
            let fits = u64::from(blocks) * load.samples + reserve <= u64::from(gpu);
            let ignored = SeqState::Finished(Ending::Failed);
            let ignored = group.in_state(ignored).next().is_some();
            prop_assert!(!(fits && ignored), "{:?} fits and was ignored", group.id());
        }
    }
}

#[test]
fn full_host_is_an_error_that_loses_no_group() {
    let config = BlockSpaceConfig::new(BlockSize::new(1).unwrap(), 4, 0);
    let load = Load { prompt_len: 3, samples: 2, output_len: 8, forks: false };
    let mut engine = Engine::new(config, &[load]);
    let mut ops = StepOps::default();
    engine.step(&mut ops);
    let before = engine.queues.running().to_vec();
    let error = engine.queues.step(&mut engine.space, &mut ops).unwrap_err();
    assert_eq!(error.to_string(), "out of memory on the CPU: 3 blocks needed, 0 free");
    assert_eq!(engine.queues.running(), before);
}
