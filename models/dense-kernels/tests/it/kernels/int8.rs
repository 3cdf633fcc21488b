//! Matmuls over activations in codes: a row's bits do not depend on the rows beside it, nor on the kernel.

use super::device::{cases, gpu};
use super::properties::{assert_leaves, dispatched, params, written};
use crate::usual;
use attn_kernels::gpu::Gpu;
use attn_kernels::profile::Registers;
use attn_kernels::self_test::{self, Case, Spec};
use dense_kernels::Dtype;
use dense_kernels::kernel::matmul::Epilogue;
use dense_kernels::kernel::matmul_int8::{self, CodeTiling, MAX_ROWS, MatmulInt8Params};
use dense_kernels::kernel::matmul_int8_tile;
use dense_kernels::kernel::matmul_tile::Tile;
use dense_kernels::pack::Format;
use proptest::prelude::*;

/// Slices that every device runs.
const MAX_LANES: u32 = 256;

/// Fails unless all kernels make the same bits of a product, those of its reference, and of its last row alone.
fn check(gpu: &Gpu, format: Format, epilogue: Epilogue, shape: [u32; 3], seed: u64) {
    let [rows, ..] = shape;
    let slices = matmul_int8::slices(epilogue, MAX_LANES);
    let few = |most, registers| {
        let tiling = CodeTiling::for_rows(most, epilogue, slices, registers);
        matmul_int8::variant(format, epilogue, tiling)
    };
    let tile = |registers| matmul_int8_tile::variant(format, epilogue, slices, Tile::coded(registers));
    let many = tile(Registers::Many);
    let case = self_test::cases(&many, &Spec::random(seed).multiplying(shape)).remove(0);
    case.run(gpu).unwrap_or_else(|fault| panic!("{format:?}, {shape:?}, seed {seed}: {fault}"));
    let all = written(gpu, &case);
    let most = usual(2, &[2, MAX_ROWS, 1, 4]).iter().map(|most| few(*most, Registers::Many));
    for variant in most.chain([few(MAX_ROWS, Registers::Few), tile(Registers::Few)]) {
        assert_leaves(gpu, &Case { variant, ..case.clone() }, &all);
    }
    let given: MatmulInt8Params = params(&case);
    let one = MatmulInt8Params { rows: 1, ..given };
    let mut alone = Case { variant: few(1, Registers::Few), ..dispatched(&case, [one]) };
    for (buffer, stride) in [(0, 8 * given.blocks), (1, 2 * given.blocks), (4, given.y_stride)] {
        alone.buffers[buffer].drain(..((rows - 1) * stride) as usize);
    }
    assert_leaves(gpu, &alone, &[all[0][((rows - 1) * given.y_stride) as usize..].to_vec()]);
}

/// One format with an offset, the one whose halves have scales of their own, and in the long form one without; by default
/// epilogues take turns.
#[test]
fn a_row_alone_is_a_row_among_many_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    let mut epilogues = [Epilogue::Add, Epilogue::SiluMul];
    for &dtype in usual(2, &[Dtype::Q4_K, Dtype::Q6_K, Dtype::Q8_0]) {
        epilogues.rotate_left(1);
        for &epilogue in usual(1, &epilogues) {
            check(gpu, Format::from(dtype), epilogue, [67, 70, 72], 3);
        }
    }
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn any_shape_has_one_order_of_sums(rows in 1u32..12, cols in 1u32..90, blocks in 1u32..80, seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        check(gpu, Format::Q4, Epilogue::Store, [rows, cols, blocks], seed);
    }
}
