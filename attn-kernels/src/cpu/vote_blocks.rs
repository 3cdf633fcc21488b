//! Reference of `vote_blocks`.

use crate::kernel::vote_blocks::VoteBlocksParams;

/// Returns the blocks that the vote keeps, ascending.
#[must_use]
pub fn vote_blocks(params: &VoteBlocksParams, lists: &[u32]) -> Vec<u32> {
    let lists: Vec<&[u32]> = (0..params.voters as usize)
        .map(|voter| &lists[voter * params.in_stride as usize..])
        .map(|list| &list[1..=list[0] as usize])
        .collect();
    let votes = |block: u32| lists.iter().filter(|list| list.contains(&block)).count();
    let forced = |block: u32| block == 0 || block + 1 >= params.blocks;
    (0..params.end).filter(|&block| forced(block) || votes(block) >= params.votes as usize).collect()
}
