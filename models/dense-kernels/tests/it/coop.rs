//! `matmul_coop` against `matmul` on the same adapter, both as trusted modules: cooperative loads cannot be
//! bounds-checked.

use std::borrow::Cow;

use crate::adapter::gpu;
use attn_kernels::Variant;
use attn_kernels::gpu::{Gpu, Pass};
use dense_kernels::kernel::matmul::{self, Epilogue, Loads, MatmulParams, Tiling};
use dense_kernels::kernel::matmul_coop::{self, Activations, CoopTile, MAX_PARTIALS, TilePlan};
use dense_kernels::kernel::split_sum::{self, SplitSumParams};
use dense_kernels::pack::Packed;
use dense_kernels::self_test::tensors::no_nan;
use dense_kernels::{Dtype, Tensor};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// Random weights `[rows, width]` of about the size that models have.
fn weights(dtype: Dtype, rows: usize, width: usize, rng: &mut StdRng) -> Tensor<'static> {
    let mut data = vec![0; rows * dtype.bytes_for(width).unwrap()];
    rng.fill_bytes(&mut data);
    for block in data.chunks_exact_mut(dtype.block_bytes()) {
        let mut half = |at: usize, low: f32, high: f32| {
            let value = f16::from_f32(rng.random_range(low..high));
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        match dtype {
            Dtype::F32 => block.copy_from_slice(&rng.random_range(-0.1f32..0.1).to_le_bytes()),
            Dtype::F16 => half(0, -0.1, 0.1),
            Dtype::BF16 => {
                block.copy_from_slice(&bf16::from_f32(rng.random_range(-0.1..0.1)).to_le_bytes());
            }
            Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 => half(0, 0.001, 0.01),
            Dtype::Q5_1 => {
                half(0, 0.005, 0.01);
                half(2, -0.15, -0.1);
            }
            Dtype::Q2_K => {
                half(80, 1e-3, 2e-3);
                half(82, 1e-3, 2e-3);
            }
            Dtype::Q3_K => half(108, 5e-4, 1e-3),
            Dtype::IQ4_NL => half(0, 5e-4, 1e-3),
            Dtype::IQ4_XS => half(0, 2e-5, 4e-5),
            Dtype::Q4_1 => {
                half(0, 0.01, 0.02);
                half(2, -0.15, -0.1);
            }
            Dtype::Q4_K | Dtype::Q5_K => {
                half(0, 1e-4, 2e-4);
                half(2, 1e-4, 2e-3);
            }
            Dtype::Q6_K => half(208, 1e-5, 2e-5),
            Dtype::MXFP4 => block[0] = rng.random_range(122..125),
            Dtype::F8_E4M3 => {
                block[..4].copy_from_slice(&rng.random_range(1e-4f32..3e-4).to_le_bytes());
                no_nan(&mut block[4..]);
            }
            other => unreachable!("no kernel reads {other}"),
        }
    }
    Tensor { name: Cow::Borrowed("w"), dtype, shape: vec![rows, width], data: Cow::Owned(data) }
}

#[derive(Clone)]
struct Product {
    packed: Packed,
    params: MatmulParams,
    epilogue: Epilogue,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Product {
    fn new(dtype: Dtype, [rows, cols, width]: [u32; 3], epilogue: Epilogue) -> Self {
        let mut rng = StdRng::seed_from_u64(11);
        let parts = if epilogue == Epilogue::SiluMul { 2 } else { 1 };
        let all = (cols * parts) as usize;
        let mut packed = Packed::new(dtype, width as usize, all);
        packed.fill(&weights(dtype, all, width as usize, &mut rng), 0..all, 0);
        // Columns of y on both sides belong to somebody else; a row of x is longer than the product needs.
        let (x_stride, y_stride, y_offset) = (width + 4, cols + 9, 5);
        let mut random = |n: u32| (0..n).map(|_| rng.random_range(-2.0..2.0)).collect::<Vec<f32>>();
        let params = MatmulParams {
            rows,
            cols,
            blocks: width / 32,
            x_stride: x_stride / 4,
            y_stride,
            y_offset,
            eps: 0.0,
            x_div: 1,
            matrices: 1,
            first_matrix: 0,
            split_blocks: u32::MAX,
        };
        let (x, y) = (random(rows * x_stride), random(rows * y_stride));
        Self { packed, params, epilogue, x, y }
    }

    fn run(&self, gpu: &Gpu, variant: &Variant, grid: [u32; 3]) -> Vec<f32> {
        let x = gpu.upload("x", &self.x).unwrap();
        let wq = gpu.upload("wq", &self.packed.quants).unwrap();
        let ws = gpu.upload("ws", &self.packed.scales).unwrap();
        let y = gpu.upload("y", &self.y).unwrap();
        let pipeline = gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}"));
        let mut pass = Pass::new("matmul");
        let bindings = [(&x).into(), (&wq).into(), (&ws).into(), (&y).into()];
        pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&self.params), &bindings, grid);
        let read = pass.read(&y, 0..y.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    /// The product proper, row by row, and whether everything round it is as it was.
    fn split(&self, y: &[f32]) -> (Vec<f32>, bool) {
        let stride = self.params.y_stride as usize;
        let inside = self.params.y_offset as usize..(self.params.y_offset + self.params.cols) as usize;
        let kept =
            y.iter().zip(&self.y).enumerate().all(|(i, (now, before))| {
                inside.contains(&(i % stride)) || now.to_bits() == before.to_bits()
            });
        (y.chunks_exact(stride).flat_map(|row| &row[inside.clone()]).copied().collect(), kept)
    }

    fn check(&self, gpu: &Gpu, tile: CoopTile) {
        let MatmulParams { rows, cols, blocks, .. } = self.params;
        let format = self.packed.format;
        let tiling = Tiling { rows: 8, wide: 1, cols: 64, slices: 1, loads: Loads::Uniform };
        let plain = matmul::variant(format, self.epilogue, tiling, blocks, None);
        let (want, _) = self.split(&self.run(gpu, &plain, matmul::grid(tiling, rows, cols)));
        let coop = matmul_coop::variant(self.packed.format, self.epilogue, Activations::F32, tile);
        let (got, kept) = self.split(&self.run(gpu, &coop, matmul_coop::grid(tile, [rows, cols], 1)));
        let what = format!("{format:?}, {:?}, {rows} x {cols} x {}, {tile:?}", self.epilogue, blocks * 32);
        assert!(kept, "{what}: wrote outside its columns");
        let square = |x: f64| x * x;
        let error: f64 = got.iter().zip(&want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
        let norm: f64 = want.iter().map(|w| square(f64::from(*w))).sum();
        let error = (error / norm).sqrt();
        // Both factors of a gated result err.
        let bound = if self.epilogue == Epilogue::SiluMul { 2e-3 } else { 1e-3 };
        assert!(error <= bound, "{what}: relative error {error:e}");
    }
}

const EPILOGUES: [Epilogue; 3] = [Epilogue::Store, Epilogue::Add, Epilogue::SiluMul];

#[test]
fn agrees_with_matmul_for_every_storage_type() {
    let Some(gpu) = gpu() else { return };
    for dtype in Dtype::ALL {
        for epilogue in EPILOGUES {
            let product = Product::new(dtype, [77, 203, 512], epilogue);
            product.check(&gpu, TilePlan::fastest(gpu.profile(), [77, 203, 16], epilogue, 0).tile);
        }
    }
}

#[test]
fn agrees_with_matmul_for_ragged_shapes() {
    let Some(gpu) = gpu() else { return };
    let shapes = [
        [1, 1, 32],
        [2, 5, 96],
        [9, 4100, 1120],
        [64, 576, 576],
        [90, 9000, 4096],
        [129, 960, 576],
        [300, 576, 1536],
        [2048, 1536, 576],
        [2048, 4096, 576],
    ];
    for shape in shapes {
        for epilogue in EPILOGUES {
            let product = Product::new(Dtype::Q4_1, shape, epilogue);
            let blocks = shape[2].div_ceil(32);
            product.check(
                &gpu,
                TilePlan::fastest(gpu.profile(), [shape[0], shape[1], blocks], epilogue, 0).tile,
            );
        }
    }
}

impl Product {
    /// Rows `first` to `first + rows` alone, by the plan whose results do not depend on the number of rows.
    fn invariant(&self, gpu: &Gpu, first: u32, rows: u32) -> Vec<f32> {
        let MatmulParams { cols, blocks, x_stride, y_stride, y_offset, .. } = self.params;
        let plan = TilePlan::invariant(gpu.profile(), [rows, cols, blocks], self.epilogue, MAX_PARTIALS);
        let TilePlan { tile, split_blocks } = plan;
        let splits = plan.splits(blocks);
        let of_rows = |data: &[f32], stride: u32| {
            let (from, len) = ((first * stride) as usize, (rows * stride) as usize);
            data[from..from + len].to_vec()
        };
        let params = MatmulParams { rows, split_blocks, ..self.params };
        let (x, y) = (of_rows(&self.x, x_stride * 4), of_rows(&self.y, y_stride));
        let format = self.packed.format;
        let variant = |epilogue| matmul_coop::variant(format, epilogue, Activations::F32, tile);
        let grid = matmul_coop::grid(tile, [rows, cols], splits);
        let alone = Self { packed: self.packed.clone(), params, epilogue: self.epilogue, x, y };
        let out = if splits == 1 {
            alone.run(gpu, &variant(self.epilogue), grid)
        } else {
            let params = MatmulParams { y_stride: cols, y_offset: 0, ..params };
            let y = vec![0.0; (splits * rows * cols) as usize];
            let partials = Self { params, epilogue: Epilogue::Store, y, ..alone.clone() };
            let partials = partials.run(gpu, &variant(Epilogue::Store), grid);
            let sum = SplitSumParams { rows, cols, splits, y_stride, y_offset };
            let (partials, y) =
                (gpu.upload("partials", &partials).unwrap(), gpu.upload("y", &alone.y).unwrap());
            let pipeline = gpu.pipeline(&split_sum::variant(self.epilogue)).unwrap();
            let mut pass = Pass::new("split_sum");
            let bindings = [(&partials).into(), (&y).into()];
            pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&sum), &bindings, split_sum::grid(&sum));
            let read = pass.read(&y, 0..y.len());
            gpu.submit(pass).unwrap().wait().unwrap().get(read)
        };
        alone.split(&out).0
    }
}

#[test]
fn rows_have_the_same_bits_in_any_company() {
    let Some(gpu) = gpu() else { return };
    let shapes = [
        ([300, 4096, 4096], Epilogue::Add),
        ([300, 6144, 2048], Epilogue::Store),
        ([300, 1024, 8192], Epilogue::Add),
        ([300, 5000, 2048], Epilogue::SiluMul),
        ([300, 40_000, 1024], Epilogue::Store),
    ];
    for (shape, epilogue) in shapes {
        let product = Product::new(Dtype::Q4_K, shape, epilogue);
        let [all, cols, _] = shape;
        let want = product.invariant(&gpu, 0, all);
        for (first, rows) in
            [(0, 1), (7, 1), (299, 1), (3, 2), (0, 16), (5, 17), (40, 33), (100, 64), (1, 65), (90, 130)]
        {
            let got = product.invariant(&gpu, first, rows);
            let same = want[(first * cols) as usize..][..(rows * cols) as usize].iter().zip(&got);
            let differing = same.filter(|(want, got)| want.to_bits() != got.to_bits()).count();
            assert_eq!(differing, 0, "{shape:?}, {epilogue:?}: rows {first} to {}", first + rows);
        }
    }
}
