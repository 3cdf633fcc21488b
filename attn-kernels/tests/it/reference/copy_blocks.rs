//! `copy_blocks` and `swap_blocks` against their references.

use super::device::{cases, dispatch, gpu};
use super::layer::shapes;
use attn_kernels::cpu;
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use attn_kernels::kernel::swap_blocks::{self, Link, SwapBlocksParams};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn copies_what_the_reference_copies(
        (shape, _) in shapes(),
        copies in 1usize..12,
        sources in 1u32..5,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let mut rng = StdRng::seed_from_u64(seed);
        let block_len = shape.block_bytes() / 4;
        let mut cache: Vec<u32> = (0..(copies + 6) * block_len).map(|_| rng.random()).collect();
        // Blocks 0..sources go to blocks after them, some more than once.
        let pairs: Vec<[u32; 2]> = (sources..).take(copies).map(|to| [rng.random_range(0..sources), to]).collect();
        copy_blocks::check(&pairs, u32::try_from(copies + 6).unwrap()).unwrap();
        let buffers = (gpu.upload("pairs", &pairs).unwrap(), gpu.upload("cache", &cache).unwrap());
        let params =
            CopyBlocksParams { block_quads: copy_blocks::block_quads(&shape) };
        let mut pass = Pass::new("copy_blocks");
        let bindings = [(&buffers.0).into(), (&buffers.1).into()];
        let grid = copy_blocks::grid(&shape, u32::try_from(copies).unwrap());
        dispatch(gpu, &mut pass, &copy_blocks::variant(), &params, &bindings, grid);
        let read = pass.read(&buffers.1, 0..cache.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::copy_blocks::copy_blocks(block_len, &pairs, &mut cache);
        prop_assert!(got == cache, "{pairs:?} in blocks of {block_len} words");
    }

    #[test]
    fn swaps_what_the_reference_swaps((shape, _) in shapes(), count in 1u32..80, seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let mut rng = StdRng::seed_from_u64(seed);
        let block_len = shape.block_bytes() / 4;
        let mut random = |blocks: u32| -> Vec<u32> {
            (0..blocks as usize * block_len).map(|_| rng.random()).collect()
        };
        let (source, mut pool) = (random(5), random(count + 3));
        // Some blocks go to many; the last of the pool first.
        let pairs: Vec<[u32; 2]> = (0..count).map(|i| [i * 7 % 5, count + 2 - i]).collect();
        swap_blocks::check(&pairs, 5, count + 3).unwrap();
        let buffers = (gpu.upload("pairs", &pairs).unwrap(), gpu.upload("source", &source).unwrap());
        let target = gpu.upload("pool", &pool).unwrap();
        let block_quads = copy_blocks::block_quads(&shape);
        let way = if count % 2 == 0 { Link::Memory } else { Link::Bus };
        let params = SwapBlocksParams::new(block_quads, count, way);
        let mut pass = Pass::new("swap_blocks");
        let bindings = [(&buffers.0).into(), (&buffers.1).into(), (&target).into()];
        let grid = swap_blocks::grid(&params);
        dispatch(gpu, &mut pass, &swap_blocks::variant(), &params, &bindings, grid);
        let read = pass.read(&target, 0..pool.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::swap_blocks::swap_blocks(block_len, &pairs, &source, &mut pool);
        prop_assert!(got == pool, "{pairs:?} in blocks of {block_len} words");
    }
}

#[test]
fn swaps_outside_a_pool_or_into_one_block_are_refused() {
    let said = |pairs: &[[u32; 2]]| swap_blocks::check(pairs, 4, 8).unwrap_err().to_string();
    assert_eq!(said(&[[0, 1], [4, 2]]), "swap_blocks: source block + 1 of entry 1 is 5, the limit is 4");
    assert_eq!(said(&[[0, 8]]), "swap_blocks: target block + 1 of entry 0 is 9, the limit is 8");
    assert_eq!(said(&[[0, 1], [1, 2], [2, 1]]), "swap_blocks: copies into one block is 2, the limit is 1");
}
