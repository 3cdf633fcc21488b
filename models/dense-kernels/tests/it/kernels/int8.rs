//! Matmuls over activations in codes: a row's bits do not depend on the rows beside it, nor on the kernel.

use super::device::{assert_bits, cases, gpu};
use super::tensors::{self, floats};
use crate::usual;
use attn_kernels::Variant;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::profile::Registers;
use dense_kernels::kernel::matmul::Epilogue;
use dense_kernels::kernel::matmul_int8::{self, CodeTiling, MAX_ROWS, MatmulInt8Params};
use dense_kernels::kernel::matmul_int8_tile;
use dense_kernels::kernel::matmul_tile::Tile;
use dense_kernels::kernel::quantize_rows::QuantizeRowsParams;
use dense_kernels::pack::{BLOCK, Packed};
use dense_kernels::{Dtype, cpu};
use proptest::prelude::*;

/// Slices that every device runs.
const MAX_LANES: u32 = 256;

struct Product {
    epilogue: Epilogue,
    params: MatmulInt8Params,
    codes: Vec<i8>,
    scales: Vec<[f32; 2]>,
    packed: Packed,
    y: Vec<f32>,
}

impl Product {
    fn new(dtype: Dtype, epilogue: Epilogue, [rows, cols, blocks]: [u32; 3], seed: u64) -> Self {
        let parts = if epilogue == Epilogue::SiluMul { 2 } else { 1 };
        let x = floats((rows * blocks * 32) as usize, seed);
        let params = QuantizeRowsParams { rows, blocks, x_stride: blocks * 8, eps: 0.0 };
        let (codes, scales) = cpu::quantize_rows::quantize_rows(&params, &x);
        let mut packed = Packed::new(dtype, blocks as usize * BLOCK, (cols * parts) as usize);
        for part in 0..parts {
            let tensor =
                tensors::random(dtype, cols as usize, blocks as usize * BLOCK, seed ^ u64::from(part + 1));
            packed.fill(&tensor, 0..cols as usize, (part * cols) as usize);
        }
        let y = floats((rows * cols) as usize, seed ^ 9);
        let params = MatmulInt8Params { rows, cols, blocks, y_stride: cols, y_offset: 0 };
        Self { epilogue, params, codes, scales, packed, y }
    }

    /// The rows from `first` on, `rows` of them, by one dispatch of a kernel.
    fn run(&self, gpu: &Gpu, variant: &Variant, [first, rows]: [u32; 2], grid: [u32; 3]) -> Vec<f32> {
        let MatmulInt8Params { cols, blocks, .. } = self.params;
        let of = |per_row: u32| (first * per_row) as usize..((first + rows) * per_row) as usize;
        let codes: &[u32] = bytemuck::cast_slice(&self.codes[of(blocks * 32)]);
        let x = gpu.upload("x", codes).unwrap();
        let scales = gpu.upload("scales", &self.scales[of(blocks)]).unwrap();
        let wq = gpu.upload("wq", &self.packed.quants).unwrap();
        let ws = gpu.upload("ws", &self.packed.scales).unwrap();
        let y = gpu.upload("y", &self.y[of(cols)]).unwrap();
        let pipeline = gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}"));
        let mut pass = Pass::new("matmul_int8");
        let bindings = [(&x).into(), (&scales).into(), (&wq).into(), (&ws).into(), (&y).into()];
        pass.dispatch_bytes(
            &pipeline,
            bytemuck::bytes_of(&MatmulInt8Params { rows, ..self.params }),
            &bindings,
            grid,
        );
        let read = pass.read(&y, 0..y.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    fn few(&self, gpu: &Gpu, at: [u32; 2], (tile_rows, registers): (u32, Registers)) -> Vec<f32> {
        let slices = matmul_int8::slices(self.epilogue, MAX_LANES);
        let tiling = CodeTiling::for_rows(tile_rows, self.epilogue, slices, registers);
        let variant = matmul_int8::variant(self.packed.format, self.epilogue, tiling);
        self.run(gpu, &variant, at, matmul_int8::grid(tiling, at[1], self.params.cols))
    }

    fn tile(&self, gpu: &Gpu, registers: Registers) -> Vec<f32> {
        let slices = matmul_int8::slices(self.epilogue, MAX_LANES);
        let tile = Tile::coded(registers);
        let variant = matmul_int8_tile::variant(self.packed.format, self.epilogue, slices, tile);
        let rows = self.params.rows;
        self.run(gpu, &variant, [0, rows], tile.grid(self.epilogue, rows, self.params.cols))
    }

    fn check(&self, gpu: &Gpu) {
        let (rows, cols) = (self.params.rows, self.params.cols as usize);
        let all = self.tile(gpu, Registers::Many);
        assert_bits("smaller tiles", &self.tile(gpu, Registers::Few), &all);
        for &tile_rows in usual(2, &[2, MAX_ROWS, 1, 4]) {
            assert_bits("rows by tiles", &self.few(gpu, [0, rows], (tile_rows, Registers::Many)), &all);
        }
        assert_bits("fewer columns", &self.few(gpu, [0, rows], (MAX_ROWS, Registers::Few)), &all);
        let last = rows - 1;
        let alone = self.few(gpu, [last, 1], (1, Registers::Few));
        assert_bits("the last row alone", &alone, &all[last as usize * cols..]);
    }
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
            Product::new(dtype, epilogue, [67, 70, 72], 3).check(gpu);
        }
    }
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn any_shape_has_one_order_of_sums(rows in 1u32..12, cols in 1u32..90, blocks in 1u32..80, seed in any::<u64>()) {
        let Some(gpu) = gpu() else { return Ok(()) };
        Product::new(Dtype::Q4_1, Epilogue::Store, [rows, cols, blocks], seed).check(gpu);
    }
}
