//! Kernels of mixtures of experts against their references.

use super::device::{assert_bits, assert_close, cases, dispatch, gpu};
use super::tensors::{self, floats};
use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::{Bound, Buf, Gpu, Pass};
use bytemuck::Pod;
use dense_kernels::kernel::matmul::{self, MatmulParams, Rows, Tiling};
use dense_kernels::kernel::moe_route::{self, ExpertSource, MoeRouteParams};
use dense_kernels::kernel::moe_sort::{self, MoeSortParams};
use dense_kernels::pack::{BLOCK, Format, Packed};
use dense_kernels::{Activation, Dtype, ExpertPacking, MoeConfig, Router, Score, Tensor, cpu};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

fn read<T: Pod>(gpu: &Gpu, pass: Pass, buffers: &[&Buf<T>]) -> Vec<Vec<T>> {
    let mut pass = pass;
    let reads: Vec<_> = buffers.iter().map(|buffer| pass.read(buffer, 0..buffer.len())).collect();
    let done = gpu.submit(pass).unwrap().wait().unwrap();
    reads.into_iter().map(|read| done.get(read)).collect()
}

fn scores() -> impl Strategy<Value = Score> {
    prop::sample::select(vec![Score::Softmax, Score::SoftmaxOfChosen, Score::Sigmoid, Score::SqrtSoftplus])
}

prop_compose! {
    /// Routers whose groups have room for the experts chosen.
    fn routers()(
        members in 2u32..20,
        groups in prop::sample::select(vec![1u32, 2, 4, 8]),
        kept in 1u32..=8,
        group_top in 1u32..=2,
        top in 1u32..=8,
        score in scores(),
        normalise: bool,
        correction: bool,
    ) -> MoeConfig {
        let top_groups = kept.min(groups);
        MoeConfig {
            num_experts: members * groups,
            top_k: top.min(members * top_groups),
            inner_size: 32,
            shared_size: None,
            router: Router { score, groups, top_groups, group_top, normalise, scale: 2.5, correction },
            activation: Activation::Silu,
            biases: false,
            weighted_input: false,
            packing: ExpertPacking::Rows,
        }
    }
}

/// Logits of rows whose experts, and whose groups, are far enough from each other for f32 to order as f64 does.
fn logits(moe: &MoeConfig, rows: u32, correction: &[f32], rng: &mut StdRng) -> Vec<f32> {
    let row = |rng: &mut StdRng| loop {
        let mut steps: Vec<u32> = (0..moe.num_experts).collect();
        steps.shuffle(rng);
        let jitter = rng.random_range(0.0f32..0.01);
        let row: Vec<f32> =
            steps.into_iter().map(|n| 4.0 * n as f32 / moe.num_experts as f32 - 2.0 + jitter).collect();
        let mut groups = cpu::moe_route::group_scores(moe, &row, correction);
        groups.sort_by(f64::total_cmp);
        if groups.windows(2).all(|pair| pair[1] - pair[0] > 1e-5) {
            return row;
        }
    };
    (0..rows).flat_map(|_| row(rng)).collect()
}

fn router(gpu: &Gpu, moe: &MoeConfig, source: ExpertSource) -> Variant {
    gpu.profile().best(|level| moe_route::variant(moe, source, level))
}

proptest! {
    #![proptest_config(cases(12))]
    #[test]
    fn routes_rows(moe in routers(), rows in 1u32..6, hashed in prop::bool::weighted(0.2), seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let mut rng = StdRng::seed_from_u64(seed);
        // A constant moves no choice.
        let correction = vec![if moe.router.correction { 0.75 } else { 0.0 }; moe.num_experts as usize];
        let logits = logits(&moe, rows, &correction, &mut rng);
        let tokens: Vec<u32> = (0..rows).map(|row| row % 3).collect();
        let table: Vec<u32> = (0..3 * moe.top_k).map(|_| rng.random_range(0..moe.num_experts)).collect();
        let params = MoeRouteParams { rows, scale: moe.router.scale };
        let floats = [&logits, &correction].map(|data| gpu.upload("f32", data).unwrap());
        let words = [&tokens, &table].map(|data| gpu.upload("u32", data).unwrap());
        let experts = gpu.upload("experts", &vec![u32::MAX; (rows * moe.top_k) as usize]).unwrap();
        let weights = gpu.upload("weights", &vec![f32::NAN; (rows * moe.top_k) as usize]).unwrap();
        // Without biases the last is not read.
        let bindings: [Bound; 7] = [
            (&floats[0]).into(), (&floats[1]).into(), (&words[0]).into(), (&words[1]).into(),
            (&experts).into(), (&weights).into(), (&floats[1]).into(),
        ];
        let mut pass = Pass::new("moe_route");
        let choice = if hashed { ExpertSource::Table } else { ExpertSource::Scores };
        dispatch(gpu, &mut pass, &router(gpu, &moe, choice), &params, &bindings);
        let (read_experts, read_weights) =
            (pass.read(&experts, 0..experts.len()), pass.read(&weights, 0..weights.len()));
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let hashed = hashed.then_some((&tokens[..], &table[..]));
        let (want_experts, want_weights) = cpu::moe_route::moe_route(&moe, &params, &logits, &correction, hashed);
        prop_assert_eq!(done.get(read_experts), want_experts, "{:?}", moe);
        let tolerance = Tolerance { abs: 1e-6, rel: 1e-5 };
        assert_close(&format!("{moe:?}"), tolerance, &done.get(read_weights), &want_weights);
    }

    #[test]
    fn sorts_pairs(experts in 1u32..300, pairs in 1u32..600, tile in prop::sample::select(vec![1u32, 4, 8]), seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let mut rng = StdRng::seed_from_u64(seed);
        let ids: Vec<u32> = (0..pairs).map(|_| rng.random_range(0..experts)).collect();
        let max_tiles = moe_sort::max_tiles(pairs, experts, tile);
        let params = MoeSortParams { pairs, tile, max_tiles };
        let input = gpu.upload("experts", &ids).unwrap();
        let tiles = gpu.upload("tiles", &vec![[u32::MAX; 4]; max_tiles as usize]).unwrap();
        let order = gpu.upload("order", &vec![u32::MAX; pairs as usize]).unwrap();
        let mut pass = Pass::new("moe_sort");
        let bindings: [Bound; 3] = [(&input).into(), (&tiles).into(), (&order).into()];
        dispatch(gpu, &mut pass, &moe_sort::variant(experts), &params, &bindings);
        let read_tiles = pass.read(&tiles, 0..tiles.len());
        let read_order = pass.read(&order, 0..order.len());
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let (want_order, want_tiles) = cpu::moe_sort::moe_sort(&params, &ids);
        prop_assert_eq!(done.get(read_tiles), want_tiles);
        // Pairs of one expert come in any order.
        let mut got = done.get(read_order);
        got.sort_by_key(|pair| (ids[*pair as usize], *pair));
        prop_assert_eq!(got, want_order);
    }
}

/// Logits of broken weights: NaN of both signs and both kinds, infinities, and the largest numbers.
const HOSTILE: [f32; 9] = [
    f32::NAN,
    -f32::NAN,
    f32::from_bits(0x7f80_0001),
    f32::INFINITY,
    f32::NEG_INFINITY,
    1.7e38,
    -1.7e38,
    f32::MAX,
    -0.0,
];

proptest! {
    #![proptest_config(cases(12))]

    /// Products with matrices of experts, those by cooperative matrices too, take tiles and order for indices, unchecked.
    #[test]
    fn hostile_logits_become_tiles_of_every_pair(
        moe in routers(),
        rows in 1u32..40,
        tile in prop::sample::select(vec![1u32, 16, 64, 128]),
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(HOSTILE.to_vec()),
            any::<u32>().prop_map(f32::from_bits),
        ], 1..64),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (pairs, experts) = (rows * moe.top_k, moe.num_experts);
        let logits: Vec<f32> = words.iter().copied().cycle().take((rows * experts) as usize).collect();
        let correction = vec![0.75f32; experts as usize];
        let floats = [&logits, &correction].map(|data| gpu.upload("f32", data).unwrap());
        let none = gpu.upload("table", &[0u32; 1]).unwrap();
        let chosen = gpu.upload("experts", &vec![u32::MAX; pairs as usize]).unwrap();
        let weights = gpu.upload("weights", &vec![f32::NAN; pairs as usize]).unwrap();
        let max_tiles = moe_sort::max_tiles(pairs, experts, tile);
        let tiles = gpu.upload("tiles", &vec![[u32::MAX; 4]; max_tiles as usize]).unwrap();
        let order = gpu.upload("order", &vec![u32::MAX; pairs as usize]).unwrap();
        let mut pass = Pass::new("route and sort");
        let bindings: [Bound; 7] = [
            (&floats[0]).into(), (&floats[1]).into(), (&none).into(), (&none).into(), (&chosen).into(), (&weights).into(),
            (&floats[1]).into(),
        ];
        let params = MoeRouteParams { rows, scale: 1.0 };
        let route = router(gpu, &moe, ExpertSource::Scores);
        dispatch(gpu, &mut pass, &route, &params, &bindings);
        let bindings: [Bound; 3] = [(&chosen).into(), (&tiles).into(), (&order).into()];
        let params = MoeSortParams { pairs, tile, max_tiles };
        dispatch(gpu, &mut pass, &moe_sort::variant(experts), &params, &bindings);
        let reads = [&chosen, &order].map(|buffer| pass.read(buffer, 0..buffer.len()));
        let read_tiles = pass.read(&tiles, 0..tiles.len());
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let [chosen, order] = reads.map(|read| done.get(read));
        let mut next = 0;
        for [expert, first, end, _] in done.get(read_tiles) {
            if first == end {
                continue;
            }
            prop_assert!(expert < experts && first == next && end > first && end - first <= tile && end <= pairs);
            prop_assert!(order[first as usize..end as usize].iter().all(|pair| chosen[*pair as usize] == expert));
            next = end;
        }
        prop_assert_eq!(next, pairs);
        let mut sorted = order;
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..pairs).collect::<Vec<_>>());
    }
}

/// Vectors times one of several matrices each.
struct Several {
    count: u32,
    cols: u32,
    width: u32,
    matrices: Vec<Tensor<'static>>,
}

impl Several {
    fn new(dtype: Dtype, count: u32, cols: u32, width: u32) -> Self {
        let matrix = |i: u32| tensors::random(dtype, cols as usize, width as usize, u64::from(i) + 9);
        Self { count, cols, width, matrices: (0..count).map(matrix).collect() }
    }

    fn params(&self, rows: u32, x_div: u32) -> MatmulParams {
        MatmulParams {
            x_stride: self.width / 4,
            x_div,
            matrices: self.count,
            ..MatmulParams::new([rows, self.cols, self.width.div_ceil(32)])
        }
    }

    /// Weights on the device; then `x`, padded for the reads behind its last row.
    fn upload(&self, gpu: &Gpu, x: &[f32]) -> (Buf<[u32; 4]>, Buf<u32>, Buf<f32>) {
        let cols = self.cols as usize;
        let mut packed = Packed::new(self.matrices[0].dtype, self.width as usize, cols * self.count as usize);
        for (i, matrix) in self.matrices.iter().enumerate() {
            packed.fill(matrix, 0..cols, i * cols);
        }
        let x: Vec<f32> = x.iter().copied().chain([0.0; BLOCK]).collect();
        let words = gpu.upload("wq", &packed.quants).unwrap();
        (words, gpu.upload("ws", &packed.scales).unwrap(), gpu.upload("x", &x).unwrap())
    }

    /// Multiplies `vector` with matrix `i`.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    fn product(&self, i: u32, vector: &[f32]) -> Vec<f32> {
        let matrix = self.matrices[i as usize].to_f32();
        let row = |row: &[f32]| {
            row.iter().zip(vector).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32
        };
        matrix.chunks_exact(self.width as usize).map(row).collect()
    }
}

const SUM: Tolerance = Tolerance { abs: 3e-5, rel: 1e-5 };

#[test]
fn pairs_meet_their_experts_in_every_tiling() {
    let Some(gpu) = gpu() else { return };
    for (dtype, width) in [(Dtype::F32, 48), (Dtype::BF16, 64), (Dtype::MXFP4, 96)] {
        let several = Several::new(dtype, 5, 21, width);
        let (rows, top) = (11, 2);
        let x = floats((rows * width) as usize, 3);
        let experts: Vec<u32> = (0..rows * top).map(|pair| pair * pair % 5).collect();
        let (wq, ws, x_buf) = several.upload(gpu, &x);
        let want: Vec<f32> = (0..rows * top)
            .flat_map(|pair| {
                let vector = &x[(pair / top * width) as usize..][..width as usize];
                several.product(experts[pair as usize], vector)
            })
            .collect();
        let mut first = None;
        for tiling in [1, 3, 70]
            .map(|rows| Tiling::for_gpu(rows, 1, 3))
            .into_iter()
            .chain([Tiling::for_cpu(1, 1, false), Tiling::for_cpu(70, 1, false)])
        {
            let max_tiles = moe_sort::max_tiles(rows * top, 5, tiling.rows);
            let sort = MoeSortParams { pairs: rows * top, tile: tiling.rows, max_tiles };
            let (order, tiles) = cpu::moe_sort::moe_sort(&sort, &experts);
            let (order, tiles) = (gpu.upload("order", &order).unwrap(), gpu.upload("tiles", &tiles).unwrap());
            let y = gpu.upload("y", &vec![f32::NAN; want.len()]).unwrap();
            let variant = matmul::several(Rows::Routed, Format::F32, tiling, 3);
            let variant = match dtype {
                Dtype::F32 => variant,
                Dtype::BF16 => matmul::several(Rows::Routed, Format::Bf16, tiling, 3),
                _ => matmul::several(Rows::Routed, Format::Mxfp4, tiling, 3),
            };
            let bindings: [Bound; 6] =
                [(&x_buf).into(), (&wq).into(), (&ws).into(), (&y).into(), (&tiles).into(), (&order).into()];
            let mut pass = Pass::new("routed");
            dispatch(gpu, &mut pass, &variant, &several.params(max_tiles, top), &bindings);
            let got = read(gpu, pass, &[&y]).remove(0);
            assert_close(&format!("{dtype}, {tiling:?}"), SUM, &got, &want);
            let first = first.get_or_insert_with(|| got.clone());
            assert_bits(&format!("{dtype}, {tiling:?}"), &got, first);
        }
    }
}

#[test]
fn every_vector_of_a_row_has_its_matrix() {
    let Some(gpu) = gpu() else { return };
    let several = Several::new(Dtype::F32, 3, 21, 40);
    for rows in [1, 7] {
        let x = floats((rows * 3 * 40) as usize, 4);
        let (wq, ws, x_buf) = several.upload(gpu, &x);
        let want: Vec<f32> =
            (0..rows * 3).flat_map(|i| several.product(i % 3, &x[i as usize * 40..][..40])).collect();
        let y = gpu.upload("y", &vec![f32::NAN; want.len()]).unwrap();
        let tiling = Tiling::for_gpu(rows, 1, 2);
        let bindings: [Bound; 4] = [(&x_buf).into(), (&wq).into(), (&ws).into(), (&y).into()];
        let mut pass = Pass::new("each");
        let variant = matmul::several(Rows::Each, Format::F32, tiling, 2);
        dispatch(gpu, &mut pass, &variant, &several.params(rows, 3), &bindings);
        assert_close(&format!("{rows} rows"), SUM, &read(gpu, pass, &[&y]).remove(0), &want);
    }
}
