//! Cases of `copy_blocks` and `swap_blocks`.

use super::spec::{SPREAD, Size};
use super::{Case, Spec, count};
use crate::Variant;
use crate::cpu;
use crate::kernel::copy_blocks::{self, CopyBlocksParams};
use crate::kernel::swap_blocks::{Link, SwapBlocksParams};
use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::rows::BlockCopy;

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(&Size { cache, rows, .. }) = spec.size() {
        let pairs: Vec<[u32; 2]> = (0..rows).map(|i| [i * SPREAD % rows, rows + i]).collect();
        let params = CopyBlocksParams { block_quads: copy_blocks::block_quads(&cache), copies: rows };
        let case = Case::new("blocks", variant, &params);
        return vec![case.costs(copied(&cache, rows), 0.0).binding(&pairs).blocks_of(&cache, 2 * rows)];
    }
    let shape = KvShape {
        num_kv_heads: spec.number(3, 1..=4),
        head_dim: spec.one_of(64, &[16, 40, 64]),
        block_size: spec.one_of(16, &[4, 16, 32]),
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let pairs: Vec<[u32; 2]> = [[0, 3], [1, 4], [0, 6], [2, 5], [1, 7]]
        .map(|[from, to]| [spec.number(from, 0..=2), to])
        .into_iter()
        .take(spec.number(4, 1..=5) as usize)
        .collect();
    let block_quads = copy_blocks::block_quads(&shape);
    let params = CopyBlocksParams { block_quads, copies: count(&pairs) };
    let before: Vec<u32> = (0..block_quads * 4 * 8).map(|word| word.wrapping_mul(0x9e37_79b9)).collect();
    let mut after = before.clone();
    cpu::copy_blocks::copy_blocks(block_quads as usize * 4, &pairs, &mut after);
    let case = Case::new("one block to one and to many", variant, &params)
        .costs(copied(&shape, count(&pairs)), 0.0)
        .binding(&pairs)
        .words(&before, &after);
    vec![case]
}

/// Number of bytes that are read and written for copies of `blocks` blocks.
fn copied(shape: &KvShape, blocks: u32) -> f64 {
    2.0 * f64::from(blocks) * shape.block_bytes() as f64
}

pub(crate) fn swap_blocks(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(&Size { cache, rows, .. }) = spec.size() {
        let pairs: Vec<[u32; 2]> = (0..rows).map(|i| [i * SPREAD % rows, i]).collect();
        let params = SwapBlocksParams::new(copy_blocks::block_quads(&cache), rows, Link::Memory);
        let case = Case::new("blocks", variant, &params).binding(&pairs);
        let case = case.blocks_of(&cache, rows).blocks_of(&cache, rows);
        return vec![case.costs(copied(&cache, rows), 0.0)];
    }
    // Blocks of less than four loads a lane, and of some more; fewer workgroups than pairs.
    let case = |name, block_quads: u32, way| {
        let count = spec.number(70, 1..=70);
        let mut pairs: Vec<[u32; 2]> = (0..count).map(|n| [n * 7 % 5, 70 - n]).collect();
        pairs[3.min(count as usize - 1)] = [0, BlockCopy::NONE.to];
        let params = SwapBlocksParams::new(block_quads, count, way);
        let words = |blocks: u32, factor: u32| -> Vec<u32> {
            (0..block_quads * 4 * blocks).map(|word| word.wrapping_mul(factor)).collect()
        };
        let (source, before) = (words(5, 0x9e37_79b9), words(71, 0x85eb_ca6b));
        let mut after = before.clone();
        cpu::swap_blocks::swap_blocks(block_quads as usize * 4, &pairs, &source, &mut after);
        Case::new(name, variant, &params).binding(&pairs).binding(&source).words(&before, &after)
    };
    let mut cases = vec![
        case("small blocks of one pool into another", spec.number(96, 1..=300), Link::Memory),
        case("large blocks over a bus", spec.number(1300, 300..=1500), Link::Bus),
    ];
    cases.push(part_of_pools(variant, spec));
    cases
}

/// Makes a case that copies the pairs in the middle of a list, between buffers that hold a part of their pools.
fn part_of_pools(variant: &Variant, spec: &Spec) -> Case {
    let block_quads = spec.number(96, 1..=1500);
    let pairs: [[u32; 2]; 6] = [[0, 0], [101, 52], [103, 50], [100, 53], [102, 54], [9, 9]];
    let of_buffers: Vec<[u32; 2]> = pairs[1..5].iter().map(|[from, to]| [from - 100, to - 50]).collect();
    let words = |factor: u32| -> Vec<u32> {
        (0..block_quads * 4 * 5).map(|word: u32| word.wrapping_mul(factor)).collect()
    };
    let (source, before) = (words(0x9e37_79b9), words(0x85eb_ca6b));
    let mut after = before.clone();
    cpu::swap_blocks::swap_blocks(block_quads as usize * 4, &of_buffers, &source, &mut after);
    let params = SwapBlocksParams {
        first_pair: 1,
        first_source: 100,
        first_target: 50,
        ..SwapBlocksParams::new(block_quads, 4, Link::Bus)
    };
    Case::new("part of two pools", variant, &params).binding(&pairs).binding(&source).words(&before, &after)
}
