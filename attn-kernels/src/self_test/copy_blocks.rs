//! Cases of `copy_blocks`.

use super::Case;
use crate::Variant;
use crate::cpu;
use crate::kernel::copy_blocks::{self, CopyBlocksParams};
use crate::kernel::{KvDtype, KvShape};

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    let shape = KvShape { num_kv_heads: 3, head_dim: 64, block_size: 16, dtype: KvDtype::F16 };
    let pairs = [[0, 3], [1, 4], [0, 6], [2, 5]];
    let block_quads = copy_blocks::block_quads(&shape);
    let params = CopyBlocksParams { block_quads, pad0: 0, pad1: 0, pad2: 0 };
    let before: Vec<u32> = (0..block_quads * 4 * 8).map(|word| word.wrapping_mul(0x9e37_79b9)).collect();
    let mut after = before.clone();
    cpu::copy_blocks::copy_blocks(block_quads as usize * 4, &pairs, &mut after);
    let case = Case::new("one block to one and to many", variant, &params, copy_blocks::grid(&shape, 4))
        .binding(&pairs)
        .words(&before, &after);
    vec![case]
}
