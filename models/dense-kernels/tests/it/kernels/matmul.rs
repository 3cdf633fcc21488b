//! `matmul` against its reference, and to the bit over every way to cut the work.

use super::device::{assert_bits, assert_close, cases, dispatch, gpu};
use super::tensors::{self, floats};
use crate::{every, usual};
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::profile::DeviceProfile;
use attn_kernels::{Access, Level, Variant, WINDOW_BYTES};
use dense_kernels::kernel::matmul::{self, Epilogue, Loads, MatmulParams, Tiling};
use dense_kernels::kernel::matmul_tile::{self, Tile};
use dense_kernels::kernel::rms_norm::{self, RmsNormParams};
use dense_kernels::pack::{BLOCK, Packed};
use dense_kernels::{Dtype, Tensor, cpu};
use proptest::prelude::*;

/// Sums of up to some thousand products of size 1/3, so of size 20: the error of a sum in f32 of that length.
const SUM: Tolerance = Tolerance { abs: 3e-5, rel: 1e-5 };
/// The product of two such sums, one through `exp`.
const GATED: Tolerance = Tolerance { abs: 5e-4, rel: 1e-4 };

const EPILOGUES: [Epilogue; 4] = [Epilogue::Store, Epilogue::Add, Epilogue::SiluMul, Epilogue::GeluMul];

/// One product: padded rows of x and y, y filled with what `Add` adds to.
struct Product {
    params: MatmulParams,
    epilogue: Epilogue,
    x: Vec<f32>,
    y: Vec<f32>,
    parts: Vec<Tensor<'static>>,
}

impl Product {
    fn new(dtype: Dtype, epilogue: Epilogue, [rows, cols, blocks]: [u32; 3], gap: u32, seed: u64) -> Self {
        let (x_stride, y_stride) = (blocks * 8 + gap, cols + 2 * gap);
        let params =
            MatmulParams { x_stride, y_stride, y_offset: gap, ..MatmulParams::new([rows, cols, blocks]) };
        let parts = if matches!(epilogue, Epilogue::SiluMul | Epilogue::GeluMul) { 2 } else { 1 };
        let part = |i: u64| tensors::random(dtype, cols as usize, blocks as usize * BLOCK, seed ^ (i << 8));
        Self {
            params,
            epilogue,
            x: floats((rows * x_stride * 4) as usize, seed ^ 1),
            y: floats((rows * y_stride) as usize, seed ^ 2),
            parts: (0..parts).map(part).collect(),
        }
    }

    fn parts(&self) -> u32 {
        u32::try_from(self.parts.len()).unwrap()
    }

    /// Every way that this crate cuts products like this one, on any device.
    fn tilings(&self, gpu: &Gpu) -> Vec<Tiling> {
        let (parts, blocks) = (self.parts(), self.params.blocks);
        let mut all: Vec<Tiling> = [1, 2, 3, 64, 65].map(|rows| Tiling::for_gpu(rows, parts, blocks)).into();
        all.extend([1, 3, 70].map(|rows| Tiling::for_cpu(rows, parts, false)));
        if gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8 {
            let broadcast = [1, 3, 70].map(|rows| Tiling::for_cpu(rows, parts, true));
            all.extend(broadcast);
            all.extend(broadcast.map(|tiling| tiling.loads(Loads::Window)));
            all.extend(broadcast.map(|tiling| tiling.loads(Loads::Windows)));
        } else {
            eprintln!("matmul with broadcast activations is skipped: subgroups of less than 8");
        }
        let mut distinct = Vec::new();
        all.into_iter().for_each(|tiling| {
            if !distinct.contains(&tiling) {
                distinct.push(tiling)
            }
        });
        distinct
    }

    fn packed(&self) -> Packed {
        let (cols, dtype) = (self.params.cols as usize, self.parts[0].dtype);
        let mut packed = Packed::new(dtype, self.params.blocks as usize * BLOCK, cols * self.parts.len());
        for (i, part) in self.parts.iter().enumerate() {
            packed.fill(part, 0..cols, i * cols);
        }
        packed
    }

    /// `y` of all rows, normed on the way in.
    fn normed(&self, gpu: &Gpu, tiling: Tiling, level: Level, weight: &[f32]) -> Vec<f32> {
        let packed = self.packed();
        let [x, y, weight] = [&self.x[..], &self.y, weight].map(|data| gpu.upload("f32", data).unwrap());
        let wq = gpu.upload("wq", &packed.quants).unwrap();
        let ws = gpu.upload("ws", &packed.scales).unwrap();
        let format = packed.format;
        let variant = matmul::variant(format, self.epilogue, tiling, self.params.blocks, Some(level));
        let bindings = [(&x).into(), (&wq).into(), (&ws).into(), (&y).into(), (&weight).into()];
        let grid = matmul::grid(tiling, self.params.rows, self.params.cols);
        let mut pass = Pass::new("matmul");
        dispatch(gpu, &mut pass, &variant, &self.params, &bindings, grid);
        let read = pass.read(&y, 0..y.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    /// `y` after rows `first..first + rows`, those rows alone.
    fn on_gpu(&self, gpu: &Gpu, tiling: Tiling, first: u32, rows: u32) -> Vec<f32> {
        let format = self.packed().format;
        let variant = matmul::variant(format, self.epilogue, tiling, self.params.blocks, None);
        // A window is a part of the rows: those of a dispatch have to lie in it. Windows of a row make one tile.
        let (variant, held) = match tiling.loads {
            Loads::Uniform | Loads::Broadcast => (variant, rows),
            Loads::Window => (matmul::from_images(variant), WINDOW_BYTES / (16 * self.params.x_stride)),
            Loads::Windows => (matmul::from_images(variant), tiling.rows),
        };
        let windows =
            (first..first + rows).step_by(held as usize).map(|at| [at, held.min(first + rows - at)]);
        let y = windows.flat_map(|[at, rows]| {
            self.dispatched(gpu, &variant, [at, rows], matmul::grid(tiling, rows, self.params.cols))
        });
        y.collect()
    }

    /// `y` after `rows` rows from `first` on, by one dispatch of a kernel.
    fn dispatched(&self, gpu: &Gpu, variant: &Variant, [first, rows]: [u32; 2], grid: [u32; 3]) -> Vec<f32> {
        let packed = self.packed();
        let row = |stride: u32| (first * stride) as usize..((first + rows) * stride) as usize;
        let x_rows = &self.x[row(self.params.x_stride * 4)];
        let x = gpu.upload_windowed("x", x_rows).unwrap();
        let [wq, ws] = match variant.bindings.iter().any(|binding| binding.access == Access::Image) {
            true => [
                gpu.image("wq", &packed.quants).unwrap().bind().bound(),
                gpu.image("ws", &packed.scales).unwrap().bind().bound(),
            ],
            false => [
                gpu.upload("wq", &packed.quants).unwrap().bind().bound(),
                gpu.upload("ws", &packed.scales).unwrap().bind().bound(),
            ],
        };
        let y = gpu.upload("y", &self.y[row(self.params.y_stride)]).unwrap();
        let mut bindings = vec![(&x).into(), wq, ws, (&y).into()];
        let windows = variant.bindings.len() - bindings.len();
        bindings.extend((1..=windows).map(|r| {
            let stride = self.params.x_stride as usize * 4;
            let row = &x_rows[r.min(rows as usize - 1) * stride..][..stride];
            gpu.upload_windowed("x of a row", row).unwrap().bind().bound()
        }));
        let params = MatmulParams { rows, ..self.params };
        let mut pass = Pass::new("matmul");
        dispatch(gpu, &mut pass, variant, &params, &bindings, grid);
        let read = pass.read(&y, 0..y.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    fn check(&self, gpu: &Gpu, tiling: Tiling) -> Vec<f32> {
        let mut want = self.y.clone();
        cpu::matmul::matmul(&self.params, self.epilogue, &self.x, &self.parts, &mut want);
        let got = self.on_gpu(gpu, tiling, 0, self.params.rows);
        let tolerance = if self.parts() == 2 { GATED } else { SUM };
        let what = format!("{}, {:?}, {tiling:?}, {:?}", self.parts[0].dtype, self.epilogue, self.params);
        assert_close(&what, tolerance, &got, &want);
        got
    }
}

/// By default every other type; tiles are compared with lanes for the ones between.
#[test]
fn every_storage_type() {
    let Some(gpu) = gpu() else { return };
    for (seed, dtype) in (0..).zip(Dtype::ALL).step_by(every(2)) {
        let product = Product::new(dtype, Epilogue::Store, [5, 37, 16], 3, seed);
        let tilings = product.tilings(gpu);
        let (first, last) = (tilings[0], *tilings.last().unwrap());
        let sliced = product.check(gpu, first);
        assert_bits(dtype.name(), &product.check(gpu, last), &sliced);
    }
}

/// By default each epilogue takes every third tiling, by turns.
#[test]
fn every_tiling_and_epilogue_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    let every = every(3);
    for (turn, epilogue) in EPILOGUES.into_iter().enumerate() {
        let product = Product::new(Dtype::Q4_1, epilogue, [70, 67, 5], 1, 77);
        let tilings = product.tilings(gpu);
        let want = product.check(gpu, tilings[0]);
        for tiling in tilings[1..].iter().skip(turn % every).step_by(every) {
            assert_bits(&format!("{epilogue:?}, {tiling:?}"), &product.check(gpu, *tiling), &want);
        }
    }
}

/// Tiles of few rows and of many, at edges in both directions, for every storage type and epilogue; by default they take turns,
/// for the types that `every_storage_type` leaves out.
#[test]
fn tiles_add_up_as_lanes_do_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    let types = Dtype::ALL.into_iter().skip(every(2) - 1).step_by(every(2));
    let types = types.map(|dtype| (dtype, Epilogue::Store));
    let epilogues = EPILOGUES.map(|epilogue| (Dtype::Q4_1, epilogue));
    for (turn, (dtype, epilogue)) in types.chain(epilogues).enumerate() {
        let product = Product::new(dtype, epilogue, [70, 139, 8], 1, 78);
        let want = product.check(gpu, product.tilings(gpu)[0]);
        let mut tiles = [Tile::choose(&DeviceProfile::H200, epilogue, 16, 0), Tile::LARGE, Tile::SHARED];
        tiles.rotate_left(turn % 3);
        for &tile in usual(1, &tiles) {
            let variant = matmul_tile::variant(product.packed().format, epilogue, tile);
            let got = product.dispatched(gpu, &variant, [0, 70], tile.grid(epilogue, 70, 139));
            assert_bits(&format!("{dtype}, {epilogue:?}, {tile:?}"), &got, &want);
        }
    }
}

#[test]
fn long_rows_take_narrower_tiles() {
    let Some(gpu) = gpu() else { return };
    for blocks in [40, 100, 300, 1000] {
        let product = Product::new(Dtype::Q8_0, Epilogue::Store, [3, 9, blocks], 0, 78);
        let sliced = product.check(gpu, Tiling::for_gpu(3, 1, blocks));
        // llvmpipe ends every lane after 65,535 rounds of its loops, which so tall a tile needs at about 900 blocks.
        if blocks < 900 {
            assert_bits(
                &format!("{blocks} blocks"),
                &product.check(gpu, Tiling::for_cpu(70, 1, false)),
                &sliced,
            );
        }
    }
}

/// A decoder's only kernel for one row of f16, which has the sum of every block in workgroup memory.
#[test]
fn one_long_row_takes_few_columns() {
    let Some(gpu) = gpu() else { return };
    for (blocks, cols) in [(384, 8), (768, 4), (900, 2), (1600, 1)] {
        let product = Product::new(Dtype::F16, Epilogue::Store, [1, 9, blocks], 0, 79);
        let tiling = Tiling::for_gpu(1, 1, blocks);
        assert_eq!((tiling.rows, tiling.cols), (1, cols), "{blocks} blocks");
        product.check(gpu, tiling);
    }
}

/// A norm on the way in is the norm kernel before it, to the bit, at every level.
#[test]
fn a_norm_in_front_is_the_norm_kernel() {
    let Some(gpu) = gpu() else { return };
    for level in [Level::Baseline, Level::Subgroup].into_iter().filter(|level| *level <= gpu.level()) {
        for rows in [1, 3] {
            let mut product = Product::new(Dtype::Q4_0, Epilogue::SiluMul, [rows, 37, 18], 0, 80);
            let tiling = Tiling::for_gpu(1, 2, 18);
            assert!(tiling.norms(), "{tiling:?}");
            let weight = floats(18 * BLOCK, 81);
            let fused = product.normed(gpu, tiling, level, &weight);
            product.x = norm(gpu, &product, level, &weight);
            assert_bits(&format!("{rows} rows, {level}"), &fused, &product.on_gpu(gpu, tiling, 0, rows));
        }
    }
}

/// Rows of `product`, normed by `rms_norm`.
fn norm(gpu: &Gpu, product: &Product, level: Level, weight: &[f32]) -> Vec<f32> {
    let params = RmsNormParams {
        rows: product.params.rows,
        width: product.params.blocks * 32,
        eps: product.params.eps,
        first: 0,
    };
    let buffers = [&product.x[..], weight, &product.x].map(|data| gpu.upload("norm", data).unwrap());
    let sources = gpu.upload("sources", &[0u32]).unwrap();
    let mut pass = Pass::new("rms_norm");
    let bindings = [(&buffers[0]).into(), (&sources).into(), (&buffers[1]).into(), (&buffers[2]).into()];
    let variant = rms_norm::variant(rms_norm::NormForm::Store, matmul::NORM_LANES, level);
    dispatch(gpu, &mut pass, &variant, &params, &bindings, rms_norm::grid(&params));
    let read = pass.read(&buffers[2], 0..product.x.len());
    gpu.submit(pass).unwrap().wait().unwrap().get(read)
}

/// By default in every other tiling.
#[test]
fn a_row_does_not_depend_on_the_others() {
    let Some(gpu) = gpu() else { return };
    let product = Product::new(Dtype::Q6_K, Epilogue::Add, [11, 20, 8], 0, 79);
    for tiling in product.tilings(gpu).into_iter().step_by(every(2)) {
        let together = product.on_gpu(gpu, tiling, 0, 11);
        for &row in usual(1, &[10, 0, 7]) {
            let alone = product.on_gpu(gpu, tiling, row, 1);
            let range = (row * 20) as usize..(row * 20 + 20) as usize;
            assert_bits(&format!("row {row}, {tiling:?}"), &alone, &together[range]);
        }
    }
}

proptest! {
    #![proptest_config(cases(5))]
    #[test]
    fn multiplies_as_the_reference_does(
        dtype in tensors::dtypes(),
        epilogue in prop::sample::select(EPILOGUES.to_vec()),
        rows in 1u32..=70,
        cols in 1u32..=100,
        super_blocks in 1u32..=3,
        gap in 0u32..4,
        tiling: prop::sample::Index,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let product = Product::new(dtype, epilogue, [rows, cols, super_blocks * 8], gap, seed);
            let tilings = product.tilings(gpu);
            product.check(gpu, tilings[tiling.index(tilings.len())]);
        }
    }
}
