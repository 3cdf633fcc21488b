//! The edge cases, each with the numbers worked out by hand.

use kvblock::v0::{
    AllocStatus, BlockMove, BlockSpaceConfig, BlockSpaceError, BlockSpaceManager, Device, Ending, Preemption,
    PreemptionMode, RequestId, SeqState, Sequence, SequenceGroup, preempt,
};
use kvblock::{BlockId, BlockSize, SeqId, SlotId, TokenIdx};

pub(crate) fn size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

pub(crate) fn q(id: u64) -> SeqId {
    SeqId::new(id)
}

/// A group of sequences `ids` with a prompt of `prompt_len` tokens.
pub(crate) fn group(ids: core::ops::Range<u64>, prompt_len: u32, block_size: u32) -> SequenceGroup {
    let prompt: Vec<_> = (0..prompt_len).collect();
    let first = ids.start;
    SequenceGroup::new(
        RequestId::new(first),
        first,
        ids.map(|id| Sequence::new(q(id), &prompt, size(block_size))),
    )
    .unwrap()
}

fn manager(block_size: u32, gpu: u32, cpu: u32) -> BlockSpaceManager {
    BlockSpaceManager::new(BlockSpaceConfig::new(size(block_size), gpu, cpu)).unwrap()
}

fn admit(space: &mut BlockSpaceManager, group: &mut SequenceGroup) {
    space.allocate(group).unwrap();
    group.transition(SeqState::Waiting, SeqState::Running).unwrap();
}

fn append(space: &mut BlockSpaceManager, group: &mut SequenceGroup, seq: SeqId) -> Option<(u32, u32)> {
    let sequence = group.get_mut(seq).unwrap();
    sequence.append_token(99);
    space.append_slot(sequence).unwrap().map(raw)
}

fn raw(BlockMove { src, dst }: BlockMove) -> (u32, u32) {
    (src.get(), dst.get())
}

fn table(space: &BlockSpaceManager, seq: SeqId) -> Vec<u32> {
    space.get_block_table(seq).unwrap().iter().map(BlockId::get).collect()
}

fn refs(space: &BlockSpaceManager, device: Device, blocks: &[u32]) -> Vec<u32> {
    blocks.iter().map(|&b| space.allocator(device).block(BlockId::new(b)).unwrap().ref_count).collect()
}

#[test]
fn fresh_blocks_come_highest_first_and_freed_ones_at_once() {
    let mut space = manager(4, 6, 0);
    let (mut a, mut b) = (group(1..2, 9, 4), group(2..3, 5, 4));
    admit(&mut space, &mut a);
    admit(&mut space, &mut b);
    assert_eq!((table(&space, q(1)), table(&space, q(2))), (vec![5, 4, 3], vec![2, 1]));

    space.free(q(1));
    let mut c = group(3..4, 13, 4);
    admit(&mut space, &mut c);
    assert_eq!(table(&space, q(3)), [3, 4, 5, 0], "freed front to back, so handed out back to front");
}

#[test]
fn block_size_one_takes_a_block_a_token() {
    let mut space = manager(1, 5, 0);
    let mut g = group(1..2, 2, 1);
    admit(&mut space, &mut g);
    assert_eq!(append(&mut space, &mut g, q(1)), None);
    assert_eq!(table(&space, q(1)), [4, 3, 2]);
    let slot = |t| space.get_block_table(q(1)).unwrap().slot(TokenIdx::new(t), size(1));
    assert_eq!((slot(2), slot(3)), (Some(SlotId::new(2)), None));
}

#[test]
fn full_prompt_blocks_are_never_copied() {
    let mut space = manager(4, 6, 0);
    let mut g = group(1..3, 8, 4);
    admit(&mut space, &mut g);
    assert_eq!(refs(&space, Device::Gpu, &[5, 4]), [2, 2]);
    assert_eq!(append(&mut space, &mut g, q(1)), None, "8 tokens fill 2 blocks: the next opens one");
    assert_eq!(append(&mut space, &mut g, q(2)), None);
    assert_eq!((table(&space, q(1)), table(&space, q(2))), (vec![5, 4, 3], vec![5, 4, 2]));
}

#[test]
fn shared_partial_block_is_copied_once_and_kept_by_the_last_holder() {
    let mut space = manager(4, 6, 0);
    let mut g = group(1..4, 6, 4);
    admit(&mut space, &mut g);
    assert_eq!(append(&mut space, &mut g, q(1)), Some((4, 3)));
    assert_eq!(append(&mut space, &mut g, q(2)), Some((4, 2)));
    assert_eq!(append(&mut space, &mut g, q(3)), None, "nobody else holds b4 any more");
    assert_eq!(refs(&space, Device::Gpu, &[5, 4, 3, 2]), [3, 1, 1, 1]);
}

#[test]
fn watermark_of_one_block_in_four() {
    let config = BlockSpaceConfig::new(size(4), 4, 0).watermark(0.25);
    let mut space = BlockSpaceManager::new(config).unwrap();
    assert_eq!(space.watermark_blocks(), 1);
    assert_eq!(space.can_allocate(&group(1..2, 12, 4)), AllocStatus::Ok, "3 of 4, 1 in reserve");
    assert_eq!(space.can_allocate(&group(1..2, 13, 4)), AllocStatus::Never, "4 of 4");

    let mut running = group(1..2, 5, 4);
    admit(&mut space, &mut running);
    assert_eq!(space.can_allocate(&group(2..3, 4, 4)), AllocStatus::Ok, "2 free, 1 in reserve");
    assert_eq!(space.can_allocate(&group(2..3, 5, 4)), AllocStatus::Later);
    assert!(space.can_append_slot(&running), "growing may use the reserve");
}

#[test]
fn watermark_is_rounded_down_and_checked() {
    let with = |watermark| {
        BlockSpaceManager::new(BlockSpaceConfig::new(size(4), 199, 0).watermark(watermark))
            .map(|space| space.watermark_blocks())
    };
    assert_eq!(with(0.01), Ok(1));
    assert_eq!(with(0.0), Ok(0));
    assert_eq!(with(2.0), Ok(398), "nothing fits, but the fraction is legal");
    assert_eq!(with(f64::INFINITY), Ok(u64::MAX));
    assert_eq!(with(-0.01), Err(BlockSpaceError::InvalidWatermark { watermark: -0.01 }));
    assert!(with(f64::NAN).is_err());

    let config = BlockSpaceConfig::new(size(4), 199, 0).watermark(f64::INFINITY);
    let space = BlockSpaceManager::new(config).unwrap();
    assert_eq!(space.can_allocate(&group(1..2, 1, 4)), AllocStatus::Never);
}

#[test]
fn swapping_keeps_sharing() {
    let mut space = manager(4, 8, 4);
    let mut g = group(1..3, 6, 4);
    admit(&mut space, &mut g);
    append(&mut space, &mut g, q(1));
    assert_eq!((table(&space, q(1)), table(&space, q(2))), (vec![7, 5], vec![7, 6]));

    assert!(space.can_swap_out(&g));
    let moves: Vec<_> = space.swap_out(&g).unwrap().into_iter().map(raw).collect();
    g.transition(SeqState::Running, SeqState::Swapped).unwrap();
    assert_eq!(moves, [(7, 3), (5, 2), (6, 1)]);
    assert_eq!((table(&space, q(1)), table(&space, q(2))), (vec![3, 2], vec![3, 1]));
    assert_eq!(refs(&space, Device::Cpu, &[0, 1, 2, 3]), [0, 1, 1, 2]);
    assert_eq!(space.allocator(Device::Gpu).num_free_blocks(), 8);

    assert_eq!(space.can_swap_in(&g), AllocStatus::Ok, "3 blocks and one more for each of 2 sequences");
    let moves = space.swap_in(&g).unwrap();
    assert_eq!(moves.len(), 3);
    let shared = table(&space, q(1))[0];
    assert_eq!(table(&space, q(2))[0], shared);
    assert_eq!(refs(&space, Device::Gpu, &[shared]), [2]);
    assert_eq!(space.allocator(Device::Cpu).num_free_blocks(), 4);
}

#[test]
fn swap_in_asks_for_room_to_grow() {
    let status = |gpu_blocks, watermark| {
        let mut space =
            BlockSpaceManager::new(BlockSpaceConfig::new(size(4), gpu_blocks, 4).watermark(watermark))
                .unwrap();
        let mut g = group(1..3, 6, 4);
        admit(&mut space, &mut g);
        space.swap_out(&g).unwrap();
        g.transition(SeqState::Running, SeqState::Swapped).unwrap();
        space.can_swap_in(&g)
    };
    assert_eq!(status(3, 0.0), AllocStatus::Never, "2 blocks and 2 to grow into");
    assert_eq!(status(4, 0.0), AllocStatus::Ok);
    assert_eq!(status(4, 0.25), AllocStatus::Later, "the total is compared without the watermark");
}

#[test]
fn sliding_window_reuses_blocks_in_turn() {
    let config = BlockSpaceConfig::new(size(4), 8, 0).sliding_window(Some(7));
    let mut space = BlockSpaceManager::new(config).unwrap();
    let mut g = group(1..2, 12, 4);
    assert_eq!(space.can_allocate(&g), AllocStatus::Ok);
    admit(&mut space, &mut g);
    assert_eq!(table(&space, q(1)), [7, 6, 7], "7 tokens round up to 2 blocks");
    append(&mut space, &mut g, q(1));
    assert_eq!(table(&space, q(1)), [7, 6, 7, 6]);
    assert_eq!(refs(&space, Device::Gpu, &[7, 6]), [1, 1]);
    space.free(q(1));
    assert_eq!(space.allocator(Device::Gpu).num_free_blocks(), 8, "each block is freed once");
}

#[test]
fn sliding_window_copies_a_reused_block_that_a_fork_holds() {
    let config = BlockSpaceConfig::new(size(4), 8, 8).sliding_window(Some(8));
    let mut space = BlockSpaceManager::new(config).unwrap();
    let mut g = group(1..2, 12, 4);
    admit(&mut space, &mut g);
    space.fork(q(1), q(2)).unwrap();
    g.add(g.get(q(1)).unwrap().fork(q(2))).unwrap();
    assert_eq!(
        refs(&space, Device::Gpu, &[7, 6]),
        [2, 2],
        "once a sequence, however often the table repeats it"
    );

    assert_eq!(append(&mut space, &mut g, q(1)), Some((6, 5)), "b6 would be overwritten under the fork");
    assert_eq!(table(&space, q(1)), [7, 5, 7, 5], "the copy takes every place of b6");
    assert_eq!(table(&space, q(2)), [7, 6, 7]);
    assert_eq!(append(&mut space, &mut g, q(2)), None, "b6 is its own now");

    let moves: Vec<_> = space.swap_out(&g).unwrap().into_iter().map(raw).collect();
    assert_eq!(moves, [(7, 7), (5, 6), (6, 5)]);
    assert_eq!((table(&space, q(1)), table(&space, q(2))), (vec![7, 6, 7, 6], vec![7, 5, 7, 5]));
    assert_eq!(refs(&space, Device::Cpu, &[7, 6, 5]), [2, 1, 1]);
    space.reset();
    assert_eq!(space.allocator(Device::Cpu).num_free_blocks(), 8);
}

#[test]
fn one_unfinished_sequence_is_recomputed_more_are_swapped() {
    let mut space = manager(4, 8, 2);
    let mut g = group(1..3, 6, 4);
    admit(&mut space, &mut g);
    assert_eq!(PreemptionMode::of(&g), PreemptionMode::Swap);

    space.free(q(2));
    g.get_mut(q(2)).unwrap().set_state(SeqState::Finished(Ending::Stopped)).unwrap();
    append(&mut space, &mut g, q(1));
    assert_eq!(preempt(&mut space, &mut g), Ok(Preemption::Recompute));
    assert_eq!(g.get(q(1)).unwrap().state(), SeqState::Waiting);
    assert_eq!(g.get(q(1)).unwrap().num_tokens(), 7, "the output stays and is prefilled again");
    assert!(space.get_block_table(q(1)).is_none());
    assert_eq!(space.allocator(Device::Gpu).num_free_blocks(), 8);
}

#[test]
fn preemption_fails_whole_when_the_cpu_is_full() {
    let mut space = manager(4, 8, 2);
    let mut g = group(1..3, 9, 4);
    admit(&mut space, &mut g);
    let before = (g.clone(), format!("{space:?}"));
    let error = preempt(&mut space, &mut g).unwrap_err();
    assert_eq!(error, BlockSpaceError::OutOfMemory { device: Device::Cpu, needed: 3, free: 2 });
    assert_eq!(error.to_string(), "out of memory on the CPU: 3 blocks needed, 2 free");
    assert_eq!((g, format!("{space:?}")), before);
}

#[test]
fn misuse_is_an_error() {
    let mut space = manager(4, 8, 8);
    let mut g = group(1..3, 4, 4);
    let of = |group: &SequenceGroup, id| group.get(q(id)).unwrap().clone();
    assert_eq!(space.append_slot(&of(&g, 1)), Err(BlockSpaceError::NotAllocated { seq: q(1) }));
    assert_eq!(space.swap_out(&g), Err(BlockSpaceError::NoneInState { state: SeqState::Running }));
    space.free(q(1));

    space.allocate(&g).unwrap();
    assert_eq!(space.allocate(&g), Err(BlockSpaceError::AlreadyAllocated { seq: q(1) }));
    assert_eq!(space.fork(q(1), q(2)), Err(BlockSpaceError::AlreadyAllocated { seq: q(2) }));
    assert_eq!(space.fork(q(9), q(3)), Err(BlockSpaceError::NotAllocated { seq: q(9) }));
    g.transition(SeqState::Waiting, SeqState::Running).unwrap();

    let mut ahead = of(&g, 1);
    (0..5).for_each(|token| ahead.append_token(token));
    let out_of_step = BlockSpaceError::OutOfStep { seq: q(1), logical_blocks: 3, table_blocks: 1 };
    assert_eq!(space.append_slot(&ahead), Err(out_of_step));

    assert_eq!(space.swap_in(&g), Err(BlockSpaceError::NoneInState { state: SeqState::Swapped }));
    space.swap_out(&g).unwrap();
    let on_cpu = BlockSpaceError::WrongDevice { seq: q(1), found: Device::Cpu, expected: Device::Gpu };
    assert_eq!(space.append_slot(&of(&g, 1)), Err(on_cpu));
    assert_eq!(space.swap_out(&g), Err(on_cpu));

    let other_size = group(5..6, 4, 2);
    let mismatch = BlockSpaceError::BlockSizeMismatch { seq: q(5), found: 2, expected: 4 };
    assert_eq!(space.allocate(&other_size), Err(mismatch));
    let mut diverged = group(6..8, 4, 4);
    diverged.get_mut(q(7)).unwrap().append_token(1);
    assert_eq!(space.allocate(&diverged), Err(BlockSpaceError::PromptsDiffer { first: q(6), other: q(7) }));
    assert_eq!(diverged.add(of(&group(7..8, 1, 4), 7)), Err(BlockSpaceError::DuplicateSeq { seq: q(7) }));
    let transition = diverged.transition(SeqState::Waiting, SeqState::Swapped);
    let (seq, from, to) = (q(6), SeqState::Waiting, SeqState::Swapped);
    assert_eq!(transition, Err(BlockSpaceError::IllegalTransition { seq, from, to }));

    let no_window = BlockSpaceConfig::new(size(4), 8, 8).sliding_window(Some(0));
    assert_eq!(BlockSpaceManager::new(no_window).unwrap_err(), BlockSpaceError::EmptyWindow);
}

#[test]
fn empty_prompt_takes_its_first_block_with_its_first_token() {
    let mut space = manager(4, 2, 0);
    let mut g = group(1..2, 0, 4);
    admit(&mut space, &mut g);
    assert!(space.get_block_table(q(1)).unwrap().is_empty());
    let nothing_new = BlockSpaceError::OutOfStep { seq: q(1), logical_blocks: 0, table_blocks: 0 };
    assert_eq!(space.append_slot(g.get(q(1)).unwrap()), Err(nothing_new));
    assert_eq!(append(&mut space, &mut g, q(1)), None);
    assert_eq!(table(&space, q(1)), [1]);
}
