//! Products of `matmul` and `matmul_tile`, to the bit over every way to cut the work.

use super::device::{assert_bits, cases, described, gpu};
use super::properties::{after, assert_leaves, assert_same_bits, dispatched, params, written};
use super::tensors;
use crate::{every, usual};
use attn_kernels::gpu::Gpu;
use attn_kernels::profile::DeviceProfile;
use attn_kernels::self_test::{self, Case, Spec};
use attn_kernels::{Level, Variant, WINDOW_BYTES};
use dense_kernels::Dtype;
use dense_kernels::kernel::matmul::{self, Epilogue, Loads, MatmulParams, Tiling};
use dense_kernels::kernel::matmul_tile::{self, Tile};
use dense_kernels::kernel::rms_norm::{self, RmsNormParams};
use dense_kernels::pack::{BLOCK, Format};
use proptest::prelude::*;

const EPILOGUES: [Epilogue; 4] = [Epilogue::Store, Epilogue::Add, Epilogue::SiluMul, Epilogue::GeluMul];

/// Every way that this crate cuts products of so many parts and blocks, on any device.
fn tilings(gpu: &Gpu, parts: u32, blocks: u32) -> Vec<Tiling> {
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

/// The kernel of a tiling.
fn lanes(dtype: Dtype, epilogue: Epilogue, tiling: Tiling, blocks: u32) -> Variant {
    let variant = matmul::variant(Format::from(dtype), epilogue, tiling, blocks, None);
    match tiling.loads {
        Loads::Uniform | Loads::Broadcast => variant,
        Loads::Window | Loads::Windows => matmul::from_images(variant),
    }
}

/// A product of this shape; `seed` draws the same one for every variant of a storage type and an epilogue.
fn product(variant: &Variant, shape: [u32; 3], seed: u64) -> Case {
    self_test::cases(variant, &Spec::random(seed).multiplying(shape)).remove(0)
}

/// Fails unless the product is the reference's.
fn check(gpu: &Gpu, variant: &Variant, shape: [u32; 3], seed: u64) -> Case {
    let case = product(variant, shape, seed);
    case.run(gpu).unwrap_or_else(|fault| panic!("{shape:?}, seed {seed}, {}: {fault}", described(variant)));
    case
}

/// Rows of a product that one dispatch of a tiling takes: a window is a part of them, and windows of a row make one tile.
fn served(tiling: Tiling, [rows, cols, blocks]: [u32; 3]) -> [u32; 3] {
    let most = match tiling.loads {
        Loads::Uniform | Loads::Broadcast => rows,
        Loads::Window => WINDOW_BYTES / (16 * (8 * blocks + 3)),
        Loads::Windows => tiling.rows,
    };
    [rows.min(most), cols, blocks]
}

/// Fails unless a product is the reference's in the first of all tilings, and has the same bits in each of `tilings`.
fn assert_one_order(
    gpu: &Gpu,
    (dtype, epilogue): (Dtype, Epilogue),
    shape: [u32; 3],
    tilings: impl Iterator<Item = Tiling>,
    seed: u64,
) {
    let first = self::tilings(gpu, epilogue.parts(), shape[2])[0];
    let case = check(gpu, &lanes(dtype, epilogue, first, shape[2]), shape, seed);
    let all = written(gpu, &case);
    for tiling in tilings.filter(|tiling| *tiling != first) {
        let variant = lanes(dtype, epilogue, tiling, shape[2]);
        let served = served(tiling, shape);
        let other = match tiling.loads {
            Loads::Uniform | Loads::Broadcast => Case { variant, ..case.clone() },
            Loads::Window | Loads::Windows => product(&variant, served, seed),
        };
        assert_leaves(gpu, &other, &all);
    }
}

/// By default every other type; tiles are compared with lanes for the ones between.
#[test]
fn every_storage_type() {
    let Some(gpu) = gpu() else { return };
    for (seed, dtype) in (0..).zip(Dtype::ALL).step_by(every(2)) {
        let tilings = tilings(gpu, 1, 16);
        let ends = [tilings[0], tilings[tilings.len() - 1]].into_iter();
        assert_one_order(gpu, (dtype, Epilogue::Store), [5, 37, 16], ends, seed);
    }
}

/// By default each epilogue takes every third tiling, by turns.
#[test]
fn every_tiling_and_epilogue_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    let every = every(3);
    for (turn, epilogue) in EPILOGUES.into_iter().enumerate() {
        let tilings = tilings(gpu, epilogue.parts(), 5).into_iter().skip(turn % every).step_by(every);
        assert_one_order(gpu, (Dtype::Q4_1, epilogue), [70, 67, 5], tilings, 77);
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
        let (shape, seed) = ([70, 139, 8], 78);
        let by_lanes = lanes(dtype, epilogue, tilings(gpu, epilogue.parts(), 8)[0], 8);
        let want = check(gpu, &by_lanes, shape, seed);
        let mut tiles = [Tile::choose(&DeviceProfile::H200, epilogue, 16, 0), Tile::LARGE, Tile::SHARED];
        tiles.rotate_left(turn % 3);
        for &tile in usual(1, &tiles) {
            let variant = matmul_tile::variant(Format::from(dtype), epilogue, tile);
            assert_same_bits(gpu, &Case { variant, ..want.clone() }, &want);
        }
    }
}

#[test]
fn long_rows_take_narrower_tiles() {
    let Some(gpu) = gpu() else { return };
    for blocks in [40, 100, 300, 1000] {
        // llvmpipe ends every lane after 65,535 rounds of its loops, which so tall a tile needs at about 900 blocks.
        let tall = (blocks < 900).then(|| Tiling::for_cpu(70, 1, false));
        let tilings = [Some(Tiling::for_gpu(3, 1, blocks)), tall].into_iter().flatten();
        assert_one_order(gpu, (Dtype::Q8_0, Epilogue::Store), [3, 9, blocks], tilings, 78);
    }
}

/// A decoder's only kernel for one row of f16, which has the sum of every block in workgroup memory.
#[test]
fn one_long_row_takes_few_columns() {
    let Some(gpu) = gpu() else { return };
    for (blocks, cols) in [(384, 8), (768, 4), (900, 2), (1600, 1)] {
        let tiling = Tiling::for_gpu(1, 1, blocks);
        assert_eq!((tiling.rows, tiling.cols), (1, cols), "{blocks} blocks");
        check(gpu, &lanes(Dtype::F16, Epilogue::Store, tiling, blocks), [1, 9, blocks], 79);
    }
}

/// A norm on the way in is the norm kernel before it, to the bit, at every level.
#[test]
fn a_norm_in_front_is_the_norm_kernel() {
    let Some(gpu) = gpu() else { return };
    for level in [Level::Baseline, Level::Subgroup].into_iter().filter(|level| *level <= gpu.level()) {
        for rows in [1, 3] {
            let tiling = Tiling::for_gpu(1, 2, 18);
            assert!(tiling.norms(), "{tiling:?}");
            let of = |norm| {
                let variant = matmul::variant(Format::Q4, Epilogue::SiluMul, tiling, 18, norm);
                product(&variant, [rows, 37, 18], 80)
            };
            let (fused, mut plain) = (of(Some(level)), of(None));
            plain.buffers[0] = normed(gpu, &fused, level);
            assert_same_bits(gpu, &fused, &plain);
        }
    }
}

/// Rows of a product after the norm that its kernel applies to them, by `rms_norm`.
fn normed(gpu: &Gpu, product: &Case, level: Level) -> Vec<u32> {
    let MatmulParams { rows, blocks, eps, x_stride, .. } = params(product);
    let (width, stride) = (blocks as usize * BLOCK, 4 * x_stride as usize);
    let norm = RmsNormParams { rows, width: blocks * 32, eps, first: 0 };
    let x: Vec<u32> =
        product.buffers[0].chunks_exact(stride).flat_map(|row| &row[..width]).copied().collect();
    let variant = rms_norm::variant(rms_norm::NormForm::Store, matmul::NORM_LANES, level);
    let case = Case::new("norm", &variant, &norm)
        .binding(&x)
        .binding(&[0u32])
        .binding(&product.buffers[4])
        .binding(&x);
    let rows = after(gpu, &case).swap_remove(3);
    let gap = |row: &[u32]| [row, &vec![0; stride - width]].concat();
    rows.chunks_exact(width).flat_map(gap).collect()
}

/// By default in every other tiling.
#[test]
fn a_row_does_not_depend_on_the_others() {
    let Some(gpu) = gpu() else { return };
    for tiling in tilings(gpu, 1, 8).into_iter().step_by(every(2)) {
        let shape = served(tiling, [11, 20, 8]);
        let case = product(&lanes(Dtype::Q6_K, Epilogue::Add, tiling, 8), shape, 79);
        let together = after(gpu, &case);
        let MatmulParams { x_stride, y_stride, .. } = params(&case);
        for &row in usual(1, &[10, 0, 7]) {
            let row = row.min(shape[0] as usize - 1);
            let one = MatmulParams { rows: 1, ..params(&case) };
            let mut alone = dispatched(&case, [one]);
            let of = |stride: u32| row * stride as usize..(row + 1) * stride as usize;
            if tiling.loads == Loads::Windows {
                let window = if row == 0 { 0 } else { 3 + row };
                let x = case.buffers[window].clone();
                [0].into_iter().chain(4..case.buffers.len()).for_each(|at| alone.buffers[at].clone_from(&x));
            } else {
                alone.buffers[0] = case.buffers[0][of(4 * x_stride)].to_vec();
            }
            alone.buffers[3] = case.buffers[3][of(y_stride)].to_vec();
            let got = after(gpu, &alone).swap_remove(3);
            let [got, want] = [&got[..], &together[3][of(y_stride)]].map(bytemuck::cast_slice);
            assert_bits(&format!("row {row}, {tiling:?}"), got, want);
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
        tiling: prop::sample::Index,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let blocks = 8 * super_blocks;
            let tiling = *tiling.get(&tilings(gpu, epilogue.parts(), blocks));
            check(gpu, &lanes(dtype, epilogue, tiling, blocks), served(tiling, [rows, cols, blocks]), seed);
        }
    }
}
