//! `copy_blocks` against its reference.

use crate::device::{cases, dispatch, gpu};
use crate::layer::shapes;
use attn_kernels::cpu;
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
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
        let buffers = (gpu.upload("pairs", &pairs).unwrap(), gpu.upload("cache", &cache).unwrap());
        let params =
            CopyBlocksParams { block_quads: copy_blocks::block_quads(&shape), pad0: 0, pad1: 0, pad2: 0 };
        let mut pass = Pass::new("copy_blocks");
        let bindings = [(&buffers.0).into(), (&buffers.1).into()];
        let grid = copy_blocks::grid(&shape, u32::try_from(copies).unwrap());
        dispatch(gpu, &mut pass, &copy_blocks::variant(), &params, &bindings, grid);
        let read = pass.read(&buffers.1, 0..cache.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::copy_blocks::copy_blocks(block_len, &pairs, &mut cache);
        prop_assert!(got == cache, "{pairs:?} in blocks of {block_len} words");
    }
}
