//! Selections that certify a mass, in kernels one after the other, against the policy's own code and against the mass itself.

use super::device::{cases, gpu};
use super::layer::{Layer, queries, shape_of};
use super::mass_bound::{Certified, Sequences, scores_and_bounds};
use super::properties::after;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::block_lse::{self, BlockLseParams};
use attn_kernels::kernel::mass_cut::{self, MassCutParams, ROUNDS};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::Case;
use proptest::prelude::*;
use sparse_select::Heads;
use sparse_select::certificate::{odds, select_mass};
use sparse_select::digest::{DigestFormat, MinMax};

/// Lists `[rows, num_kv_heads]` that certify `mass`.
fn on_gpu(gpu: &Gpu, of: &Sequences, layer: &Layer, q: &[f32], mass: f64) -> Vec<Vec<u32>> {
    let (shape, blocks) = (&of.shape, of.blocks());
    let rows = of.rows(layer);
    let n = u32::try_from(rows.len()).unwrap();
    let sets = rows.len() * shape.num_kv_heads as usize;
    let [k, _] = layer.words();
    let [scores, bounds] = scores_and_bounds(gpu, of, layer, q);
    let mut lses = vec![f32::NAN.to_bits(); bounds.len() / 2];
    let mut cuts = vec![u32::MAX; 4 * sets];
    let mut lists = vec![0; sets * (blocks + 1) as usize];
    let lse = BlockLseParams {
        num_heads: of.num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: of.num_heads * shape.head_dim,
        stride: blocks,
        scale: of.scale,
        first: 0,
        rows: n,
    };
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let cut = MassCutParams {
        num_heads: of.num_heads,
        num_kv_heads: shape.num_kv_heads,
        stride: blocks,
        select_block: of.select_block,
        list_stride: blocks + 1,
        round: 0,
        odds: odds(mass) as f32,
        slack: 1.0,
        rows: n,
    };
    let variants = [
        block_lse::variant(shape, of.num_heads, of.select_block),
        mass_cut::variant(of.num_heads / shape.num_kv_heads),
    ];
    for round in ROUNDS {
        let lse = BlockLseParams { first: u32::from(round == mass_cut::FIRST), ..lse };
        let case = Case::new("logits", &variants[0], &lse)
            .binding(q)
            .binding(&k)
            .binding(&layer.tables)
            .binding(&rows)
            .binding(&scores)
            .binding(&cuts)
            .binding(&lses);
        lses = after(gpu, &case).swap_remove(6);
        let case = Case::new("cuts", &variants[1], &MassCutParams { round, ..cut })
            .binding(&rows)
            .binding(&scores)
            .binding(&bounds)
            .binding(&lses)
            .binding(&cuts)
            .binding(&lists);
        let mut left = after(gpu, &case);
        (lists, cuts) = (left.remove(5), left.remove(4));
    }
    lists.chunks_exact((blocks + 1) as usize).map(|list| list[1..=list[0] as usize].to_vec()).collect()
}

fn check(gpu: &Gpu, of: &Sequences, mass: f64, seed: u64) {
    let shape = of.shape;
    // Scores are exact in f32, so that ties are ties on both sides.
    let mut layer = Layer::new(shape, &of.lens, seed);
    layer.k.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
    let (dim, heads, kv_heads) =
        (shape.head_dim as usize, of.num_heads as usize, shape.num_kv_heads as usize);
    let mut q = queries(of.lens.len(), heads * dim, heads * dim, seed);
    q.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
    let lists = on_gpu(gpu, of, &layer, &q, mass);
    let size = kvblock::BlockSize::new(of.select_block).unwrap();
    for (set, list) in lists.iter().enumerate() {
        let (row, kv) = (set / kv_heads, set % kv_heads);
        let table = &layer.tables[layer.table_of[row] as usize..];
        let (cache, len) = (layer.kv(), of.lens[row] as usize);
        #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
        let keys: Vec<f32> = (0..kv_heads)
            .flat_map(|head| (0..len).flat_map(move |t| cache.key(table, head, t).collect::<Vec<_>>()))
            .map(|x| x as f32)
            .collect();
        let q = Heads::new("q", &q[row * heads * dim..][..heads * dim], [heads, 1, dim]).unwrap();
        let k = Heads::new("k", &keys, [kv_heads, len, dim]).unwrap();
        let digest = MinMax::of(&k, size, DigestFormat::F32);
        // Where rounding of f32 decides, one side may go on for a block: not by more than what it is worth.
        let at = mass / (1.0 - mass);
        let oracle = |odds: f64| select_mass(&q, &k, kv, &digest, odds / (1.0 + odds)).blocks;
        let (fewest, most) = (oracle(at * (1.0 - 1e-3)), oracle(at * (1.0 + 1e-3)));
        let within = |a: &[u32], b: &[u32]| a.iter().all(|block| b.contains(block));
        let what = format!("{shape:?}, {:?}, row {row}, KV head {kv}, mass {mass}", of.lens);
        assert!(within(&fewest, list) && within(list, &most), "{what}: {list:?}, {fewest:?} to {most:?}");
        for head in kv * heads / kv_heads..(kv + 1) * heads / kv_heads {
            let logits = sparse_select::attention::logits(q.row(head, 0), &k, kv, f64::from(of.scale));
            let weight = |t: usize| logits[t].exp();
            let is_kept = |t: &usize| list.contains(&u32::try_from(t / of.select_block as usize).unwrap());
            let kept = (0..len).filter(is_kept).map(weight).sum::<f64>();
            let all = (0..len).map(weight).sum::<f64>();
            assert!(kept >= mass * all, "{what}, head {head}: {kept} of {all}");
        }
    }
}

#[test]
fn masses_that_settle_at_once_and_in_the_last_turn() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 16,
        block_size: 8,
        dtype: KvDtype::F32,
        layout: KvLayout::Native,
    };
    // A low mass adds few blocks a round.
    for mass in [1e-6, 0.05, 0.5, 0.9, 0.9999] {
        check(gpu, &Sequences::new((shape, 2), 1, &[2100, 8, 9, 1]), mass, 5);
    }
}

proptest! {
    #![proptest_config(cases(2))]

    /// Rounding of f32 grows with the terms of a logit, not with what is left of them.
    #[test]
    fn masses_are_kept_where_terms_cancel(
        shape in 0_usize..4,
        dtype in prop::sample::select(vec![KvDtype::F16, KvDtype::F32]),
        len in 100..1000_u32,
        exponent in 2.0..6.0_f32,
        mass in prop::sample::select(vec![0.3, 0.9, 0.99]),
        seed in any::<u64>(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (shape, num_heads) = shape_of(shape, dtype);
        let mut case = Certified::cancelling(shape, num_heads, len, 10_f32.powf(exponent), seed);
        let (layer, _, q) = &case.layers[0];
        let lists = on_gpu(gpu, &case.of, layer, q, mass);
        case.keep(&lists);
        for [kept, _] in case.by_keys() {
            prop_assert!(kept >= mass, "kept {kept}, {mass} was asked for");
        }
    }

    #[test]
    fn blocks_are_those_of_the_policy(
        shape in 0_usize..5,
        half in any::<bool>(),
        pages in prop::sample::select(vec![1_u32, 2, 32]),
        lens in prop::collection::vec(1..1500_u32, 1..4),
        mass in 0.02..0.999_f64,
        seed in any::<u64>(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let shape = shape_of(shape, if half { KvDtype::F16 } else { KvDtype::F32 });
        check(gpu, &Sequences::new(shape, pages, &lens), mass, seed);
    }
}
