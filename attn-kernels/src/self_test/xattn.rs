//! Cases of the kernels of XAttention: `stride_queries`, `strided_qk` at all levels, `softmax_block_sum`, `find_blocks`.

use sparse_select::Heads;

use super::hostile::{self, Indices, Order};
use super::layer::{ATTENTION, Layer, queries};
use super::{Case, Spec, cached, filled};
use crate::cpu::{self, Tolerance, f32_of};
use crate::kernel::find_blocks::{self, FindBlocksParams, Vote};
use crate::kernel::stride_queries::StrideType;
use crate::kernel::xattn::Estimate;
use crate::kernel::{KvDtype, KvLayout, KvShape, stride_queries, strided_qk};
use crate::{Level, Variant, slot};

/// Tolerance with cooperative matrices, which round queries to f16: scores have a relative error of 2^-11.
const COOP: Tolerance = Tolerance { abs: 5e-3, rel: 1e-3 };

/// Tolerance of sums of weights of a softmax over some hundred scores.
const SUMS: Tolerance = Tolerance { abs: 1e-5, rel: 1e-4 };

/// Makes a causal chunk that starts and ends inside a block and a stride.
fn estimate(spec: &Spec, num_heads: u32, width: u32, stride: u32, block: u32) -> Estimate {
    let kv_len = spec.len(3 * block + 5, block, block + 1..=5 * block);
    let q_len = spec.len(block + block / 2 + 3, block, 1..=kv_len - block);
    Estimate {
        num_heads,
        q_stride: width + 4 * spec.number(1, 0..=4),
        q_first: 0,
        q_len,
        kv_len,
        table: 0,
        causal: true,
        stride,
        block,
        norm: 1.0,
        vote: Vote::Majority,
    }
}

pub(crate) fn stride_queries(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (dim, stride) = (filled(variant, slot::HEAD_DIM), filled(variant, slot::STRIDE));
    let e = estimate(spec, 3, 3 * dim, stride, 16 * stride);
    let q = queries(e.q_len as usize, 3 * dim as usize, e.q_stride as usize, spec.seed(6));
    // WGSL leaves the rounding open: nothing is left to round.
    let q: Vec<f32> = q.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
    // From the second query block on, whose rows end after the chunk.
    let params = e.stride_queries(&(1..e.query_blocks()));
    let want = cpu::stride_queries::stride_queries(&params, dim as usize, stride as usize, &q);
    let to = if filled(variant, stride_queries::HALVES) { StrideType::F16 } else { StrideType::F32 };
    let want = words(&want, to);
    let case = Case::new("a chunk inside blocks", variant, &params).binding(&q);
    vec![case.words(&vec![u32::MAX; want.len()], &want)]
}

/// Converts strides to the words that the device stores.
fn words(strides: &[f32], to: StrideType) -> Vec<u32> {
    let half = |x: f32| u32::from(half::f16::from_f32(x).to_bits());
    match to {
        StrideType::F16 => {
            strides.as_chunks().0.iter().map(|&[low, high]| half(low) | half(high) << 16).collect()
        }
        StrideType::F32 => strides.iter().map(|x| x.to_bits()).collect(),
    }
}

pub(crate) fn strided_qk(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let is_coop = variant.level == Level::Coop;
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: if is_coop { 16 * filled(variant, slot::SPANS) } else { filled(variant, slot::HEAD_DIM) },
        block_size: filled(variant, slot::BLOCK_SIZE),
        dtype: if is_coop { KvDtype::F16 } else { cached(variant).1 },
        layout: KvLayout::Native,
    };
    let stride = filled(variant, slot::STRIDE);
    let part = if is_coop { 16 * filled(variant, slot::WIDTH) } else { filled(variant, strided_qk::PART) };
    let (num_heads, dim) = (2 * spec.number(2, 1..=3), shape.head_dim as usize);
    let heads = num_heads as usize;
    let causal = spec.one_of(true, &[true, true, false]);
    let e =
        Estimate { causal, ..estimate(spec, num_heads, num_heads * shape.head_dim, stride, stride * part) };
    // The second of two sequences.
    let layer = Layer::new(shape, &[20, e.kv_len], spec.seed(5));
    let e = Estimate { table: layer.table_of[1], ..e };
    let rows = e.q_len as usize;
    let q = queries(rows, heads * dim, e.q_stride as usize, spec.seed(6));
    let row = |head: usize, t: usize| &q[t * e.q_stride as usize + head * dim..][..dim];
    let q_heads: Vec<f32> =
        (0..heads).flat_map(|head| (0..rows).flat_map(move |t| row(head, t).iter().copied())).collect();
    let (kv, table) = (layer.kv(), &layer.tables[e.table as usize..]);
    let key = |head: usize, t: usize| kv.key(table, head, t).map(f32_of).collect::<Vec<_>>();
    let tokens = (0..2).flat_map(|head| (0..e.kv_len as usize).map(move |t| (head, t)));
    let k_heads: Vec<f32> = tokens.flat_map(|(head, t)| key(head, t)).collect();
    let fits = "the tensors are as long as their shapes say";
    let q_heads = Heads::new("q", &q_heads, [heads, rows, dim]).expect(fits);
    let k_heads = Heads::new("k", &k_heads, [2, e.kv_len as usize, dim]).expect(fits);
    let blocks = spec.number(0, 0..=e.query_blocks() - 1)..e.query_blocks();
    let (params, of_queries) = (e.strided_qk(&shape, &blocks), e.stride_queries(&blocks));
    let sizes = [of_queries.front, stride, part].map(|n| n as usize);
    let want = cpu::strided_qk::strided_qk(&params, sizes[0], sizes[1], sizes[2], &q_heads, &k_heads);
    let strides = cpu::stride_queries::stride_queries(&of_queries, dim, stride as usize, &q);
    let [k, _] = layer.words();
    let case = Case::new("a chunk inside blocks", variant, &params)
        .binding(&words(&strides, if is_coop { StrideType::F16 } else { StrideType::F32 }))
        .binding(&k)
        .binding(&layer.tables)
        .finite(if is_coop { COOP } else { ATTENTION }, &want);
    vec![case]
}

pub(crate) fn softmax_block_sum(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (rows, part) = (filled(variant, slot::ROWS), filled(variant, strided_qk::PART));
    let e = estimate(spec, 4, 128, 8, 8 * rows);
    let blocks = 0..e.query_blocks();
    let params = e.softmax_block_sum(&blocks);
    let [parts_len, _] = e.scratch_lens(blocks.end);
    let parts: Vec<f32> = spec.floats(parts_len, 1).iter().map(|x| x * 6.0).collect();
    let mut want = cpu::softmax_block_sum::softmax_block_sum(&params, rows as usize, part as usize, &parts);
    // Key blocks after a query block's own are not written.
    let key_blocks = e.key_blocks() as usize;
    for (row, sums) in want.chunks_mut(key_blocks).enumerate() {
        let own = e.first_block() as usize + row % e.query_blocks() as usize;
        sums.iter_mut().skip(own + 1).for_each(|sum| *sum = f32::NAN);
    }
    let case = Case::new("a chunk inside blocks", variant, &params).binding(&parts).finite(SUMS, &want);
    vec![case]
}

/// Makes cases of short rows, and of long ones with many equal masses, whose sum is more than that of a softmax.
pub(crate) fn find_blocks(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (key_blocks, query_blocks) = (spec.number(40, 4..=300), spec.number(3, 1..=4));
    let (short, limits) =
        found("majorities", variant, spec, [spec.number(2, 1..=3), key_blocks, query_blocks]);
    let lists = Indices { order: Order::List, stride: key_blocks as usize + 3, limits, none: None };
    let mut cases = vec![short];
    for floats in [0, 1] {
        cases.extend(hostile::cases(&cases[0], &[floats], &[(2, lists.clone())]));
    }
    let kv_heads = spec.number(1, 1..=2);
    cases.push(found("long rows", variant, spec, [kv_heads, spec.number(3000, 1..=3000), 2]).0);
    cases.push(found("one block", variant, spec, [1, 1, 1]).0);
    cases
}

/// A case of so many KV heads, key blocks and query blocks, and an upper bound of the blocks of each list. Masses are
/// multiples of 1/64 and thresholds multiples of 1/16, so that neither device nor reference rounds.
fn found(
    what: &'static str,
    variant: &Variant,
    spec: &Spec,
    [num_kv_heads, key_blocks, query_blocks]: [u32; 3],
) -> (Case, Vec<u32>) {
    let group = filled(variant, slot::GROUP);
    let vote = spec.one_of(Vote::Majority, &[Vote::Any, Vote::Majority, Vote::All]);
    let causal = spec.one_of(true, &[true, true, false]);
    let (heads, out_stride) = (num_kv_heads * group, key_blocks + 3);
    let params = FindBlocksParams {
        num_kv_heads,
        query_blocks,
        key_blocks,
        sum_stride: key_blocks,
        current: spec.number(key_blocks.saturating_sub(query_blocks), 0..=key_blocks),
        causal: causal.into(),
        out_stride,
        first_list: 0,
        votes: vote.votes(group),
        // Masses of a query block add up to more than its rows; so many units still fit.
        units: find_blocks::units(1 << 14),
    };
    let seen = |row: u32| match causal {
        true => key_blocks.min(params.current + row % query_blocks + 1),
        false => key_blocks,
    };
    let mass = |x: &f32| (x.max(0.0) * 40.0).floor() / 64.0;
    let len = heads * query_blocks * key_blocks;
    let mut sums: Vec<f32> = spec.floats(len as usize, 1).iter().map(mass).collect();
    for (row, sums) in (0..).zip(sums.chunks_mut(key_blocks as usize)) {
        sums[seen(row) as usize..].fill(0.0);
    }
    let sixteenths = spec.list(&[15, 8, 3], 9, |spec| spec.number(8, 1..=16));
    let thresholds: Vec<f32> =
        sixteenths.iter().cycle().take(heads as usize).map(|n| *n as f32 / 16.0).collect();
    let wide: Vec<f64> = thresholds.iter().map(|&t| t.into()).collect();
    let lists = cpu::find_blocks::find_blocks(&params, &sums, heads as usize, &wide)
        .expect("a threshold for each head");
    let before = vec![77_777; lists.len() * out_stride as usize];
    let mut after = before.clone();
    for (out, list) in after.chunks_mut(out_stride as usize).zip(&lists) {
        out[0] = super::count(list);
        out[1..=list.len()].copy_from_slice(list);
    }
    let case = Case::new(what, variant, &params).binding(&sums).binding(&thresholds).words(&before, &after);
    (case, (0..super::count(&lists)).map(|list| seen(list / num_kv_heads)).collect())
}
