//! Cases of mixtures of experts: the router, the order of pairs, the gated unit, the sum, and products with several
//! matrices.

use std::ops::Range;

use crate::kernel::matmul::ROWS;
use crate::kernel::matmul::Rows;
use crate::kernel::matmul_coop;
use crate::kernel::matmul_coop::Activations;
use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::hostile::{self, Indices, Order};
use attn_kernels::self_test::{Case, Spec, filled};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::{products, tensors};
use crate::cpu::matmul_int8::Codes;
use crate::cpu::quantize_rows::quantize_rows;
use crate::kernel::expert_down::ExpertDownParams;
use crate::kernel::expert_gate_up::ExpertGateUpParams;
use crate::kernel::glu::{self, GluParams};
use crate::kernel::matmul::MatmulParams;
use crate::kernel::moe_combine::{self, MoeCombineParams};
use crate::kernel::moe_route::{self, MoeRouteParams};
use crate::kernel::moe_sort::{self, MoeSortParams};
use crate::kernel::quantize_rows::QuantizeRowsParams;
use crate::pack::{BLOCK, Packed};
use crate::{Activation, ExpertPacking, MoeConfig, Router, Score, Tensor, cpu};

/// Tolerance of a few products and an exponential.
const UNIT: Tolerance = Tolerance { abs: 3e-6, rel: 1e-5 };
/// Tolerance of a row's weights, whose sum is 2.5.
const WEIGHTS: Tolerance = Tolerance { abs: 1e-6, rel: 1e-5 };

pub(crate) fn route(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let scores = [Score::Softmax, Score::SoftmaxOfChosen, Score::Sigmoid, Score::SqrtSoftplus];
    let (experts, groups) = (filled(variant, moe_route::EXPERTS), filled(variant, moe_route::GROUPS));
    let moe = MoeConfig {
        num_experts: experts,
        top_k: filled(variant, moe_combine::TOP),
        inner_size: 32,
        shared_size: None,
        router: Router {
            score: scores[filled(variant, moe_route::SCORE) as usize],
            groups,
            top_groups: filled(variant, moe_route::TOP_GROUPS),
            group_top: filled(variant, moe_route::GROUP_TOP),
            normalise: filled(variant, moe_route::NORMALISE),
            scale: 2.5,
            correction: groups > 1,
        },
        activation: Activation::Silu,
        biases: filled(variant, glu::BIASED),
        weighted_input: false,
        packing: ExpertPacking::Rows,
    };
    let (rows, salt) = (spec.rows(5, 1..=70), spec.number(0, 0..=1000));
    let mut rng = StdRng::seed_from_u64(spec.seed(6));
    // A constant moves no choice.
    let correction = vec![spec.one_of(0.75, &[0.0, 0.75]); experts as usize];
    // Biases are smaller than the distance of ranks.
    let bias: Vec<f32> = (0..experts).map(|e| (e % 3) as f32 / experts as f32).collect();
    let biased = |row: &[f32]| match moe.biases {
        true => row.iter().zip(&bias).map(|(x, b)| x + b).collect(),
        false => row.to_vec(),
    };
    // Every row has the same logits in another order. They, and sums of groups, are far enough apart for f32 to rank as f64 does.
    let mut row = || loop {
        let mut row: Vec<f32> = (0..experts).map(|rank| 4.0 * rank as f32 / experts as f32 - 2.0).collect();
        row.shuffle(&mut rng);
        let mut groups = cpu::moe_route::group_scores(&moe, &biased(&row), &correction);
        groups.sort_by(f64::total_cmp);
        if groups.windows(2).all(|pair| pair[1] - pair[0] > 1e-5) {
            return row;
        }
    };
    let logits: Vec<f32> = (0..rows).flat_map(|_| row()).collect();
    let biased: Vec<f32> = logits.chunks_exact(bias.len()).flat_map(biased).collect();
    let tokens: Vec<u32> = (0..rows).map(|row| row % 3).collect();
    let table: Vec<u32> = (0..3 * moe.top_k).map(|entry| (entry * 31 + salt) % experts).collect();
    let params = MoeRouteParams { rows, scale: moe.router.scale };
    let hashed = filled(variant, moe_route::HASHED).then_some((&tokens[..], &table[..]));
    let (chosen, weights) = cpu::moe_route::moe_route(&moe, &params, &biased, &correction, hashed);
    let case = Case::new("rows of ranked experts", variant, &params)
        .binding(&logits)
        .binding(&correction)
        .binding(&tokens)
        .binding(&table)
        .words(&vec![u32::MAX; chosen.len()], &chosen)
        .output(WEIGHTS, &weights)
        .binding(&bias);
    let mut cases = vec![case];
    if hashed.is_none() && spec.size().is_none() {
        let limits = vec![experts; rows as usize];
        let picked = Indices { order: Order::Different, stride: moe.top_k as usize, limits, none: None };
        for floats in [0, 1] {
            cases.extend(hostile::cases(&cases[0], &[floats], &[(4, picked.clone())]));
        }
    }
    cases
}

pub(crate) fn sort(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let experts = filled(variant, moe_route::EXPERTS);
    let tile = spec.one_of(4, &[1, 4, 8, 16, 64, 128]);
    let case = |what, ids: &[u32], ordered: bool| {
        let pairs = u32::try_from(ids.len()).expect("a few pairs");
        let max_tiles = moe_sort::max_tiles(pairs, experts, tile);
        let params = MoeSortParams { pairs, tile, max_tiles };
        let clamped: Vec<u32> = ids.iter().map(|id| (*id).min(experts - 1)).collect();
        let (order, tiles) = cpu::moe_sort::moe_sort(&params, &clamped);
        let case =
            Case::new(what, variant, &params).binding(ids).words(&vec![[u32::MAX; 4]; tiles.len()], &tiles);
        let before = vec![u32::MAX; order.len()];
        // Pairs of one expert come in any order.
        let any = Indices { order: Order::Different, stride: order.len(), limits: vec![pairs], none: None };
        if ordered { case.words(&before, &order) } else { case.indices(&before, any) }
    };
    let (pairs, used) = (spec.rows(300, 1..=2000), spec.number(experts.min(7), 1..=experts));
    let mut rng = StdRng::seed_from_u64(spec.seed(5));
    let mut once: Vec<u32> = (0..experts).collect();
    once.shuffle(&mut rng);
    once.truncate(experts.div_ceil(2) as usize);
    let often: Vec<u32> = (0..pairs).map(|_| rng.random_range(0..used) * (experts / used)).collect();
    let outside: Vec<u32> = often.iter().map(|id| id.wrapping_mul(0x9e37_79b9)).collect();
    vec![
        case("experts of many pairs", &often, false),
        case("experts of one pair", &once, true),
        case("experts that there are none of", &outside, false),
    ]
}

/// The activation that a variant is compiled for.
fn activation(variant: &Variant, alpha: f32, limit: f32) -> Activation {
    match filled(variant, glu::KIND) {
        0 => Activation::Silu,
        1 => Activation::LimitedSilu { limit },
        _ => Activation::LimitedSwiglu { alpha, limit },
    }
}

pub(crate) fn gate(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, inner) = (spec.rows(5, 1..=40), spec.width(70, 1..=300));
    let (limit, alpha) = (spec.one_of(0.5, &[0.25, 0.5, 7.0]), 1.702);
    let activation = activation(variant, alpha, limit);
    let params = GluParams { rows, inner, out_stride: inner + spec.number(3, 0..=5), alpha, limit };
    let x = spec.floats((rows * 2 * inner) as usize, 1);
    let (weights, biases) = (spec.floats(rows as usize, 2), spec.floats(3 * 2 * inner as usize, 3));
    let experts: Vec<u32> = (0..rows).map(|row| row % 3).collect();
    let before = spec.floats((rows * params.out_stride) as usize, 4);
    let mut after = before.clone();
    let weighted = filled(variant, glu::WEIGHTED).then_some(&weights[..]);
    let biased = filled(variant, glu::BIASED).then_some((&experts[..], &biases[..]));
    cpu::glu::glu(&params, activation, &x, weighted, biased, &mut after);
    let case = Case::new("rows of experts", variant, &params)
        .binding(&x)
        .binding(&experts)
        .binding(&weights)
        .binding(&biases)
        .updated(&before, UNIT, &after);
    vec![case]
}

pub(crate) fn combine(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, width) = (spec.rows(5, 1..=40), spec.width(70, 1..=300));
    let top = filled(variant, moe_combine::TOP);
    let params = MoeCombineParams { rows, width };
    let pairs = (rows * top) as usize;
    let x = spec.floats(pairs * width as usize, 1);
    let (weights, biases) = (spec.floats(pairs, 2), spec.floats(5 * width as usize, 3));
    let experts: Vec<u32> = (0..rows * top).map(|pair| pair * 7 % 5).collect();
    let before = spec.floats((rows * width) as usize, 4);
    let mut after = before.clone();
    let weighted = filled(variant, glu::WEIGHTED).then_some(&weights[..]);
    let biased = filled(variant, glu::BIASED).then_some(&biases[..]);
    cpu::moe_combine::moe_combine(&params, &x, &experts, weighted, biased, &mut after);
    let case = Case::new("rows of experts", variant, &params)
        .binding(&x)
        .binding(&experts)
        .binding(&weights)
        .binding(&biases)
        .updated(&before, UNIT, &after);
    vec![case]
}

/// `count` random matrices of `[cols, 32 * blocks]`.
fn matrices(variant: &Variant, spec: &Spec, count: u32, cols: u32, blocks: u32) -> Vec<Tensor<'static>> {
    let (dtype, width) = (products::dtype(variant), blocks as usize * BLOCK);
    let random = |seed| tensors::random(dtype, cols as usize, width, spec.seed(seed));
    (0..u64::from(count)).map(random).collect()
}

/// Packs matrices of one shape side by side into one matrix.
fn side_by_side(tensors: &[Tensor<'_>]) -> Packed {
    let (dtype, cols, width) = (tensors[0].dtype, tensors[0].shape[0], tensors[0].shape[1]);
    let mut packed = Packed::new(dtype, width, cols * tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        packed.fill(tensor, 0..cols, i * cols);
    }
    packed
}

/// Experts whose matrices lie side by side, and pairs that choose among them.
struct Chosen {
    tensors: Vec<Tensor<'static>>,
    packed: Packed,
    experts: Vec<u32>,
    /// Range of the experts whose matrices a dispatch has.
    served: Range<u32>,
}

impl Chosen {
    /// `pairs` pairs with experts whose matrices are `[cols, 32 * blocks]`. The dispatch leaves out the first expert and,
    /// if there are more than two, the last.
    fn new(variant: &Variant, spec: &Spec, pairs: u32, cols: u32, blocks: u32) -> Self {
        let count = spec.number(5, 2..=9);
        let tensors = matrices(variant, spec, count, cols, blocks);
        let served = 1..count - u32::from(count > 2);
        let packed = side_by_side(&tensors[served.start as usize..served.end as usize]);
        let experts = (0..pairs).map(|pair| (pair * pair + pair / 3) % count).collect();
        Self { tensors, packed, experts, served }
    }

    fn serves(&self, pair: usize) -> bool {
        self.served.contains(&self.experts[pair])
    }
}

/// Codes of random rows.
fn random_codes(spec: &Spec, rows: u32, blocks: u32, salt: u64) -> (Vec<i8>, Vec<[f32; 2]>) {
    let params = QuantizeRowsParams { rows, blocks, x_stride: blocks * 8, eps: 0.0 };
    quantize_rows(&params, &spec.floats((rows * blocks) as usize * BLOCK, salt))
}

pub(crate) fn expert_gate_up(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let top = filled(variant, moe_combine::TOP);
    let rows = spec.named(|size| size.batch, 3, 1..=6);
    let inner = 32 * spec.named(|size| size.cols / 32, 3, 1..=5);
    let blocks = products::whole_blocks(variant, spec, 40);
    let (limit, alpha) = (spec.one_of(0.5, &[0.25, 0.5, 7.0]), 1.702);
    let activation = activation(variant, alpha, limit);
    let pairs = rows * top;
    let chosen = Chosen::new(variant, spec, pairs, 2 * inner, blocks);
    let (codes, scales) = random_codes(spec, rows, blocks, 9);
    let biases = spec.floats(chosen.tensors.len() * 2 * inner as usize, 3);
    let params = ExpertGateUpParams {
        pairs,
        inner,
        blocks,
        matrices: chosen.served.end - chosen.served.start,
        first_matrix: chosen.served.start,
        alpha,
        limit,
    };
    let biased = filled(variant, glu::BIASED).then_some(&biases[..]);
    let rows = Codes { codes: &codes, scales: &scales };
    let (mut made, mut made_scales) = cpu::expert_gate_up::expert_gate_up(
        &params,
        activation,
        rows,
        &chosen.experts,
        &chosen.tensors,
        biased,
    );
    // Pairs of other dispatches stay as they were.
    let (len, num_blocks) = (inner as usize, inner as usize / BLOCK);
    for pair in (0..pairs as usize).filter(|pair| !chosen.serves(*pair)) {
        made[pair * len..][..len].fill(0);
        made_scales[pair * num_blocks..][..num_blocks].fill([0.0; 2]);
    }
    // A sum in another order may round to the code next to it.
    let step = made_scales.iter().fold(0.0f32, |step, [d, _]| step.max(*d));
    let tolerance = Tolerance { abs: products::GATED.abs + 3.0 * f64::from(step), rel: products::GATED.rel };
    let case = Case::new("pairs of experts of two dispatches", variant, &params)
        .binding(bytemuck::cast_slice::<i8, u32>(&codes))
        .binding(&scales)
        .binding(&chosen.packed.quants)
        .binding(&chosen.packed.scales)
        .binding(&chosen.experts)
        .binding(&biases)
        .codes(&made)
        .updated(&vec![0.0; made_scales.len() * 2], tolerance, made_scales.as_flattened());
    vec![case]
}

pub(crate) fn expert_down(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let top = filled(variant, moe_combine::TOP);
    let rows = spec.named(|size| size.batch, 3, 1..=6);
    let width = spec.named(|size| size.cols, 75, 1..=200);
    let blocks = products::whole_blocks(variant, spec, 24);
    let pairs = rows * top;
    let chosen = Chosen::new(variant, spec, pairs, width, blocks);
    let (codes, scales) = random_codes(spec, pairs, blocks, 9);
    let (factors, biases) =
        (spec.floats(pairs as usize, 2), spec.floats(chosen.tensors.len() * width as usize, 3));
    let params = ExpertDownParams {
        rows,
        width,
        blocks,
        matrices: chosen.served.end - chosen.served.start,
        first_matrix: chosen.served.start,
    };
    let before = spec.floats((rows * width) as usize, 4);
    let mut after = before.clone();
    let biased = filled(variant, glu::BIASED).then_some(&biases[..]);
    let served = |pair: usize| if chosen.serves(pair) { factors[pair] } else { 0.0 };
    let of_dispatch: Vec<f32> = (0..pairs as usize).map(served).collect();
    let of_pairs = Codes { codes: &codes, scales: &scales };
    let tensors = &chosen.tensors;
    cpu::expert_down::expert_down(
        &params,
        of_pairs,
        &chosen.experts,
        &of_dispatch,
        tensors,
        biased,
        &mut after,
    );
    let case = Case::new("experts of two dispatches", variant, &params)
        .binding(bytemuck::cast_slice::<i8, u32>(&codes))
        .binding(&scales)
        .binding(&chosen.packed.quants)
        .binding(&chosen.packed.scales)
        .binding(&chosen.experts)
        .binding(&factors)
        .binding(&biases)
        .updated(&before, products::SUM, &after);
    vec![case]
}

/// Cases of rows that are multiplied by one of several matrices each, chosen by their place or by their expert, with
/// tiles of `tile_rows` rows.
pub(crate) fn several(variant: &Variant, spec: &Spec, tile_rows: u32, tolerance: Tolerance) -> Case {
    let routed = variant.get(ROWS) == Some(Rows::Routed);
    let activations = variant.get(matmul_coop::ACTIVATIONS);
    let matrices = spec.number(5, 1..=9);
    // Some experts have more pairs than a tile, whatever its size.
    let (usual, most) = if routed { (2 * tile_rows + 9, 2 * tile_rows + 9) } else { (7, 20) };
    let [rows, cols, blocks] = spec.product().unwrap_or_else(|| {
        let (rows, cols) = (spec.number(usual, 1..=most), spec.number(75, 1..=200));
        [rows, cols, products::whole_blocks(variant, spec, 4)]
    });
    let mut tensors = self::matrices(variant, spec, matrices, cols, blocks);
    // Rows of plain types need not fill their last block, whose weights are then zeros.
    let is_plain = tensors[0].dtype.block_elems() == 1 && activations.is_none();
    let gap = if is_plain { 4 * spec.number(0, 0..=7) } else { 0 };
    let padding = gap as usize * tensors[0].dtype.block_bytes();
    for tensor in &mut tensors {
        let row = tensor.data.len() / cols as usize;
        let rows = tensor.data.to_mut().chunks_exact_mut(row);
        rows.for_each(|weights| weights[row - padding..].fill(0));
    }
    let packed = side_by_side(&tensors);
    // Routed: pairs of a row and one of its two experts. Else: a vector for each matrix in every row.
    let x_div = if routed { 2 } else { matrices };
    let results = rows * x_div;
    let max_tiles = moe_sort::max_tiles(results, matrices, tile_rows);
    let width = (32 * blocks - gap) as usize;
    let mut x = spec.floats(if routed { rows } else { results } as usize * width, 9);
    x.resize(x.len() + gap as usize, 0.0);
    let experts: Vec<u32> =
        (0..results).map(|i| if routed { i * i % matrices } else { i % matrices }).collect();
    let rows = if routed { max_tiles } else { rows };
    let x_stride = 8 * blocks - gap / 4;
    let params = MatmulParams { x_stride, x_div, matrices, ..MatmulParams::new([rows, cols, blocks]) };
    let one = MatmulParams { rows: 1, ..params };
    let mut want = vec![f32::NAN; (results * cols) as usize];
    for ((i, expert), y) in (0..).zip(&experts).zip(want.chunks_exact_mut(cols as usize)) {
        let vector = if routed { i / 2 } else { i };
        let tensor = &tensors[*expert as usize..=*expert as usize];
        cpu::matmul::matmul(&one, crate::kernel::matmul::Epilogue::Store, &x[vector * width..], tensor, y);
    }
    let case = Case::new("rows of several matrices", variant, &params);
    let case = match activations {
        Some(Activations::F16) => case.binding(&products::halves(&x)),
        _ => case.binding(&x),
    };
    let case = case.binding(&packed.quants).binding(&packed.scales).output(tolerance, &want);
    if !routed {
        return case;
    }
    let sort = MoeSortParams { pairs: results, tile: tile_rows, max_tiles };
    let (order, tiles) = cpu::moe_sort::moe_sort(&sort, &experts);
    case.binding(&tiles).binding(&order)
}
