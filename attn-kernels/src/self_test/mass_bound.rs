//! Cases of `mass_bound` and `mass_merge`.

use super::options::Lists;
use super::spec::Size;
use super::{Case, Spec, count};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::mass_bound::{self, MassBoundParams};
use crate::kernel::mass_merge::MassMergeParams;
use crate::kernel::paged_decode::PARTITION;

/// Tolerance of sums of exponentials, and the slack of their bounds.
const SHARES: Tolerance = Tolerance { abs: 1e-7, rel: 2e-4 };

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed(variant, size)];
    }
    // Rows that keep every third block, all blocks, the last one, and none.
    vec![case(
        "lists of every kind",
        variant,
        spec,
        &[|b, _| b % 3 == 1, |_, _| true, |b, n| b + 1 == n, |_, _| false],
    )]
}

fn case(what: &'static str, variant: &Variant, spec: &Spec, keeps: &[fn(u32, u32) -> bool]) -> Case {
    let (num_kv_heads, select_block) = (spec.number(2, 1..=4), spec.one_of(32, &[16, 32, 64]));
    let num_heads = num_kv_heads * spec.number(2, 1..=4);
    // Two runs of blocks, and fewer.
    let usual = [1030 * select_block + 3, 3 * select_block, 4 * select_block + 1, select_block];
    let lens = usual.map(|len| spec.len(len, select_block, 1..=len + 3 * select_block));
    let blocks = |len: u32| len.div_ceil(select_block);
    let list_stride = 2 + lens.iter().copied().map(blocks).max().unwrap_or(0);
    let mut selected = Vec::new();
    for (len, keep) in lens.iter().zip(keeps) {
        let kept: Vec<u32> = (0..blocks(*len)).filter(|b| keep(*b, blocks(*len))).collect();
        for _ in 0..num_kv_heads {
            let end = selected.len() + list_stride as usize;
            selected.push(count(&kept));
            selected.extend(&kept);
            selected.resize(end, 77_777);
        }
    }
    let params = MassBoundParams {
        num_heads,
        num_kv_heads,
        select_block,
        list_stride,
        max_partitions: (list_stride * select_block).div_ceil(PARTITION),
        bound_stride: list_stride + spec.number(3, 0..=5),
        first_row: 0,
        first_share: 0,
        share_stride: mass_bound::share_stride(list_stride),
        partition_size: PARTITION,
        slack: spec.one_of(2.0, &[1.0, 1.5, 2.0]),
        rows: count(&lens),
    };
    let heads = lens.len() * num_heads as usize;
    let bounds: Vec<[f32; 2]> = spec
        .floats(heads * params.bound_stride as usize, 3)
        .iter()
        .map(|x| [6.0 * x, 0.25 * x.abs()])
        .collect();
    let stats: Vec<[f32; 2]> = spec
        .floats(heads * params.max_partitions as usize, 4)
        .iter()
        .map(|x| [3.0 * x, 1.0 + x.abs()])
        .collect();
    let rows: Vec<[u32; 4]> = lens.iter().map(|len| [0, *len, 0, 0]).collect();
    let shares = cpu::mass_bound::mass_bound(&params, &bounds, &rows, &selected, &stats);
    Case::new(what, variant, &params)
        .binding(&bounds)
        .binding(&rows)
        .binding(&selected)
        .binding(&stats)
        .output(SHARES, &shares)
}

/// Makes the timed case: lists of a fraction of the blocks.
fn timed(variant: &Variant, size: &Size) -> Case {
    let &Size { num_heads, batch, context, select_block, density, .. } = size;
    let (num_kv_heads, blocks) = (size.cache.num_kv_heads, context.div_ceil(select_block));
    let lens = std::iter::repeat_n(context, (batch * num_kv_heads) as usize);
    let Lists { lists, stride, .. } = Lists::share(lens, select_block, density);
    let params = MassBoundParams {
        num_heads,
        num_kv_heads,
        select_block,
        list_stride: stride,
        max_partitions: ((stride - 1) * select_block).div_ceil(PARTITION),
        bound_stride: blocks,
        first_row: 0,
        first_share: 0,
        share_stride: mass_bound::share_stride(blocks),
        partition_size: PARTITION,
        slack: 1.0,
        rows: batch,
    };
    let of_heads = [2 * blocks, 2 * params.max_partitions, params.share_stride];
    let [bounds, stats, shares] = of_heads.map(|len| batch * num_heads * len);
    Case::new("a share of the blocks", variant, &params)
        .costs(4.0 * f64::from(bounds + stats + shares + count(&lists)), 0.0)
        .floats_of(bounds)
        .binding(&vec![[0, context, 0, 0]; batch as usize])
        .binding(&lists)
        .floats_of(stats)
        .floats_of(shares)
}

pub(crate) fn merge_cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let (layers, rows) = (size.rows, size.batch * size.num_heads);
        let share_stride = mass_bound::share_stride(size.context.div_ceil(size.select_block));
        let (params, shares) = (MassMergeParams { layers, rows, share_stride }, layers * rows * share_stride);
        let case = Case::new("all layers", variant, &params);
        return vec![case.costs(4.0 * f64::from(shares + rows), 0.0).floats_of(shares).floats_of(rows)];
    }
    // More layers than lanes; every third row of a layer drops nothing.
    let params =
        MassMergeParams { layers: spec.number(70, 1..=300), rows: spec.number(5, 1..=9), share_stride: 4 };
    let mut shares: Vec<f32> = spec
        .floats((params.layers * params.rows * params.share_stride) as usize, 2)
        .iter()
        .map(|x| x.abs())
        .collect();
    shares.chunks_mut(4).step_by(3).for_each(|shares| shares[0] = -1.0);
    // And one row in no layer.
    shares.chunks_mut(4).skip(4).step_by(5).for_each(|shares| shares[0] = -1.0);
    let masses = cpu::mass_merge::mass_merge(&params, &shares);
    let case =
        Case::new("a row that drops nothing", variant, &params).binding(&shares).finite(SHARES, &masses);
    vec![case]
}
