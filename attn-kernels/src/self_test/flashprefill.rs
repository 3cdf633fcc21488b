//! Cases of the kernels of FlashPrefill: `block_mean`, `block_energy`, `block_energy_coop`, `keep_blocks`, and of its correction:
//! `block_means`, `attend_means`.

use sparse_select::Heads;

use super::hostile::{self, Indices, Order};
use super::layer::{ATTENTION, Layer, queries};
use super::{Case, Spec, count, filled, shape};
use crate::cpu::{self, Tolerance};
use crate::kernel::flashprefill::FlashPrefill;
use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::{Level, Variant, slot};

/// Tolerance of sums of keys of size 1 in another order.
const MEANS: Tolerance = Tolerance { abs: 1e-6, rel: 1e-5 };
/// Tolerance with cooperative matrices, which round queries and means to f16: an error of 2^-11 of a score of some units.
const COOP: Tolerance = Tolerance { abs: 5e-3, rel: 1e-3 };

/// Makes a chunk that starts and ends inside a block.
fn chunk(spec: &Spec, num_heads: u32, head_dim: u32, block: u32) -> FlashPrefill {
    let kv_len = spec.len(3 * block + 5, block, block + 1..=5 * block);
    FlashPrefill {
        num_heads,
        q_stride: num_heads * head_dim + 4 * spec.number(1, 0..=4),
        q_first: 0,
        q_len: spec.len(block + block / 2 + 3, block, 1..=kv_len - block),
        kv_len,
        table: 0,
        block,
        alpha: 0.45,
        sink_blocks: spec.number(1, 0..=3),
        recent_blocks: spec.number(2, 0..=3),
    }
}

/// Returns a cache, a chunk over it, and the number of tokens of a block.
fn cache(variant: &Variant, spec: &Spec) -> (KvShape, FlashPrefill, usize) {
    let shape = shape(variant, spec.number(3, 1..=4));
    let block = shape.block_size * filled(variant, slot::PAGES);
    (shape, chunk(spec, shape.num_kv_heads, shape.head_dim, block), block as usize)
}

pub(crate) fn block_means(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (shape, f, block) = cache(variant, spec);
    let layer = Layer::new(shape, &[f.kv_len], spec.seed(5));
    let params = f.block_means(&shape).expect("there are blocks before the chunk");
    let [keys, values] = cpu::block_means::block_means(&layer.kv(), &params, block, &layer.tables);
    let [k, v] = layer.words();
    let case = Case::new("the full blocks of a sequence", variant, &params)
        .binding(&layer.tables)
        .binding(&k)
        .binding(&v)
        .output(MEANS, &keys)
        .output(MEANS, &values);
    vec![case]
}

pub(crate) fn attend_means(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (head_dim, block) = (filled(variant, slot::HEAD_DIM), filled(variant, slot::BLOCK));
    let shape =
        KvShape { num_kv_heads: 2, head_dim, block_size: 4, dtype: KvDtype::F16, layout: KvLayout::Native };
    // Seven blocks before the last one.
    let kv_len = spec.len(7 * block + 5, block, 6 * block..=12 * block);
    let f = FlashPrefill { kv_len, ..chunk(spec, 4, head_dim, block) };
    let [means_len, _] = f.scratch_lens(&shape, 1);
    let (keys, values) = (spec.floats(means_len, 7), spec.floats(means_len, 8));
    let q = queries(f.q_len as usize, 4 * head_dim as usize, f.q_stride as usize, spec.seed(6));
    let stride = f.key_blocks() + 3;
    // Everything but every third block, and nothing but it.
    let list = |list: u32| {
        let own = f.first_block() + list / 2;
        (0..=own)
            .filter(|block| *block == own || block.is_multiple_of(3) == list.is_multiple_of(2))
            .collect::<Vec<_>>()
    };
    let lists: Vec<Vec<u32>> = (0..f.query_blocks() * 2).map(list).collect();
    let mut words = vec![77_777; lists.len() * stride as usize];
    for (out, list) in words.chunks_mut(stride as usize).zip(&lists) {
        out[0] = count(list);
        out[1..=list.len()].copy_from_slice(list);
    }
    let rows = (f.q_len * 4) as usize;
    let (out, lse) = (spec.floats(rows * head_dim as usize, 9), spec.floats(rows, 10));
    let (mut all_out, mut all_lse) = (out.clone(), lse.clone());
    let params = f.attend_means(&shape, stride, 0);
    let sizes = [block, head_dim].map(|n| n as usize);
    let to = (&mut all_out[..], &mut all_lse[..]);
    cpu::attend_means::attend_means(&params, sizes, &q, [&keys, &values], &lists, to);
    let case = Case::new("a chunk inside blocks", variant, &params)
        .binding(&q)
        .binding(&keys)
        .binding(&values)
        .binding(&words)
        .updated(&out, ATTENTION, &all_out)
        .updated(&lse, ATTENTION, &all_lse);
    vec![case]
}

pub(crate) fn block_mean(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (shape, f, block) = cache(variant, spec);
    let layer = Layer::new(shape, &[f.kv_len], spec.seed(5));
    let params = f.block_mean(&shape).expect("there are blocks before the chunk");
    let want = cpu::block_mean::block_mean(&layer.kv(), &params, block, &layer.tables);
    let [k, _] = layer.words();
    let case = Case::new("the full blocks of a sequence", variant, &params)
        .binding(&layer.tables)
        .binding(&k)
        .output(MEANS, &want);
    vec![case]
}

pub(crate) fn block_energy(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let is_coop = variant.level == Level::Coop;
    let (head_dim, block) = if is_coop {
        (16 * filled(variant, slot::SPANS), 32 * filled(variant, slot::SUBGROUPS))
    } else {
        (filled(variant, slot::HEAD_DIM), filled(variant, slot::BLOCK))
    };
    let shape =
        KvShape { num_kv_heads: 2, head_dim, block_size: 4, dtype: KvDtype::F16, layout: KvLayout::Native };
    let (heads, dim) = (4, head_dim as usize);
    let f = chunk(spec, 4, head_dim, block);
    let rows = f.q_len as usize;
    let q = queries(rows, heads * dim, f.q_stride as usize, spec.seed(6));
    let row = |head: usize, t: usize| &q[t * f.q_stride as usize + head * dim..][..dim];
    let q_heads: Vec<f32> =
        (0..heads).flat_map(|head| (0..rows).flat_map(move |t| row(head, t).iter().copied())).collect();
    let blocks = 0..f.query_blocks();
    let [means_len, _] = f.scratch_lens(&shape, blocks.end);
    let means = spec.floats(means_len, 7);
    let fits = "the tensors are as long as their shapes say";
    let q_heads = Heads::new("q", &q_heads, [heads, rows, dim]).expect(fits);
    let of_means = Heads::new("means", &means, [2, means.len() / 2 / dim, dim]).expect(fits);
    let params = f.block_energy(&shape, &blocks);
    let want = cpu::block_energy::block_energy(&params, block as usize, &blocks, &q_heads, &of_means);
    let case = Case::new("a chunk inside blocks", variant, &params)
        .binding(&q)
        .binding(&means)
        .finite(if is_coop { COOP } else { ATTENTION }, &want);
    vec![case]
}

/// Makes cases whose energies are multiples of 1/4, so that none is near the threshold of 0.45 times another.
pub(crate) fn keep_blocks(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let group = filled(variant, slot::GROUP);
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let [kv_len, q_len] = [(40, 4..=80), (3, 1..=4)].map(|(usual, blocks)| 128 * spec.number(usual, blocks));
    let f = FlashPrefill { kv_len, q_len, ..chunk(spec, 2 * group, 64, 128) };
    let blocks = 0..f.query_blocks();
    let stride = f.key_blocks() + 3;
    let params = f.keep_blocks(&shape, &blocks, stride, 0);
    let [_, len] = f.scratch_lens(&shape, blocks.end);
    let energies: Vec<f32> = spec.floats(len, 1).iter().map(|x| (x * 24.0).floor() / 4.0).collect();
    let lists = cpu::keep_blocks::keep_blocks(&params, &energies, f.num_heads as usize);
    let before = vec![77_777; lists.len() * stride as usize];
    let mut after = before.clone();
    for (out, list) in after.chunks_mut(stride as usize).zip(&lists) {
        out[0] = count(list);
        out[1..=list.len()].copy_from_slice(list);
    }
    let case = Case::new("shares of the largest", variant, &params).binding(&energies).words(&before, &after);
    let limits = blocks.flat_map(|row| [f.first_block() + row + 1; 2]).collect();
    let lists = Indices { order: Order::List, stride: stride as usize, limits, none: None };
    let mut cases = vec![case];
    cases.extend(hostile::cases(&cases[0], &[0], &[(1, lists)]));
    cases
}
