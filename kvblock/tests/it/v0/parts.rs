//! The pieces by themselves, each against the plainest model of it.

use kvblock::v0::{BLANK, BlockAllocator, BlockMove, BlockSpaceError, CopyList, Device, Sequence};
use kvblock::{BlockId, BlockSize, SeqId};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum AllocatorOp {
    Allocate,
    Retain(u32),
    Free(u32),
}

fn allocator_op() -> impl Strategy<Value = AllocatorOp> {
    prop_oneof![
        3 => Just(AllocatorOp::Allocate),
        1 => (0u32..7).prop_map(AllocatorOp::Retain),
        3 => (0u32..7).prop_map(AllocatorOp::Free),
    ]
}

proptest! {
    // 100,000 operations of the allocator by default.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases * 14,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A stack of free ids and a count for each, over six blocks; id 6 does not exist.
    #[test]
    fn allocator_is_a_stack_with_counts(ops in prop::collection::vec(allocator_op(), 0..60)) {
        let device = Device::Cpu;
        let mut allocator = BlockAllocator::new(device, BlockSize::new(4).unwrap(), 6);
        let (mut stack, mut counts) = (vec![0, 1, 2, 3, 4, 5], [0u32; 6]);
        for op in ops {
            match op {
                AllocatorOp::Allocate => {
                    let expected = stack.pop();
                    if let Some(id) = expected { counts[id as usize] = 1; }
                    let oom = BlockSpaceError::OutOfMemory { device, needed: 1, free: 0 };
                    prop_assert_eq!(allocator.allocate(), expected.map(BlockId::new).ok_or(oom));
                }
                AllocatorOp::Retain(id) => {
                    let block = BlockId::new(id);
                    let expected = match counts.get_mut(id as usize) {
                        None => Err(BlockSpaceError::UnknownBlock { device, block, num_blocks: 6 }),
                        Some(0) => Err(BlockSpaceError::UseAfterFree { device, block }),
                        Some(count) => { *count += 1; Ok(()) }
                    };
                    prop_assert_eq!(allocator.retain(block), expected);
                }
                AllocatorOp::Free(id) => {
                    let block = BlockId::new(id);
                    let expected = match counts.get_mut(id as usize) {
                        None => Err(BlockSpaceError::UnknownBlock { device, block, num_blocks: 6 }),
                        Some(0) => Err(BlockSpaceError::DoubleFree { device, block }),
                        Some(count) => {
                            *count -= 1;
                            if *count == 0 { stack.push(id); }
                            Ok(())
                        }
                    };
                    prop_assert_eq!(allocator.free(block), expected);
                }
            }
            prop_assert_eq!(allocator.num_free_blocks() as usize, stack.len());
            for (id, count) in (0..).zip(counts) {
                prop_assert_eq!(allocator.block(BlockId::new(id)).unwrap().ref_count, count);
            }
        }
    }

    /// However tokens arrive, the blocks are the tokens cut every `block_size`.
    #[test]
    fn logical_blocks_are_chunks(
        block_size in 1u32..6,
        prompt in prop::collection::vec(0u32..1000, 0..20),
        output in prop::collection::vec(0u32..1000, 0..20),
    ) {
        let size = BlockSize::new(block_size).unwrap();
        let mut sequence = Sequence::new(SeqId::new(1), &prompt, size);
        output.iter().for_each(|&token| sequence.append_token(token));
        let tokens = [prompt.clone(), output].concat();

        prop_assert_eq!(sequence.prompt_len() as usize, prompt.len());
        prop_assert_eq!(sequence.num_tokens() as usize, tokens.len());
        prop_assert_eq!(sequence.token_ids().collect::<Vec<_>>(), tokens.clone());
        prop_assert_eq!(sequence.num_logical_blocks(), size.blocks_for(sequence.num_tokens()));
        let chunks = tokens.chunks(block_size as usize);
        for ((i, block), chunk) in (0..).zip(sequence.logical_token_blocks()).zip(chunks) {
            let mut positions = chunk.to_vec();
            positions.resize(block_size as usize, BLANK);
            prop_assert_eq!(block.block_number().get(), i);
            prop_assert_eq!(block.token_ids(), chunk);
            prop_assert_eq!(block.positions(), positions);
            prop_assert_eq!(block.last_token_id(), chunk.last().copied());
            prop_assert_eq!(block.is_full(), chunk.len() == block_size as usize);
            prop_assert_eq!(block.num_empty_slots() as usize, block_size as usize - chunk.len());
        }
    }

    /// Waves, run in either direction, leave what the copies one after the other leave.
    #[test]
    fn copy_waves_keep_the_order(moves in prop::collection::vec((0u32..5, 0u32..5), 0..12)) {
        let moves = moves.into_iter().filter(|(src, dst)| src != dst);
        let moves: Vec<_> =
            moves.map(|(src, dst)| BlockMove { src: BlockId::new(src), dst: BlockId::new(dst) }).collect();
        let mut copies = CopyList::new();
        copies.extend(moves.iter().copied());

        let run = |memory: &mut [u32; 5], src: BlockId, dst: BlockId| {
            memory[dst.get() as usize] = memory[src.get() as usize];
        };
        let mut expected = [0, 1, 2, 3, 4];
        moves.iter().for_each(|m| run(&mut expected, m.src, m.dst));
        let (mut forward, mut backward) = ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]);
        for wave in copies.waves() {
            let pairs = wave.iter().flat_map(|(src, dsts)| dsts.iter().map(|dst| (*src, *dst)));
            let pairs: Vec<_> = pairs.collect();
            pairs.iter().for_each(|&(src, dst)| run(&mut forward, src, dst));
            pairs.iter().rev().for_each(|&(src, dst)| run(&mut backward, src, dst));
        }
        prop_assert_eq!(forward, expected);
        prop_assert_eq!(backward, expected);
    }
}

#[test]
#[should_panic(expected = "3 tokens appended to a block with room for 2")]
fn logical_block_overflow_is_a_broken_invariant() {
    let mut block =
        kvblock::v0::LogicalTokenBlock::new(kvblock::BlockIdx::new(0), BlockSize::new(4).unwrap());
    block.append_tokens(&[1, 2]);
    block.append_tokens(&[3, 4, 5]);
}
