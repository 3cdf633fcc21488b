//! Cases of `block_lse` and `mass_cut`.

use super::hostile::{self, Indices, Order};
use super::layer::{ATTENTION, Layer, queries};
use super::spec::Size;
use super::{Case, Spec, count, filled, shape};
use crate::cpu::{self, Tolerance};
use crate::kernel::KvShape;
use crate::kernel::block_lse::BlockLseParams;
use crate::kernel::mass_cut::{FIRST, LIST, MassCutParams, ROUNDS};
use crate::{Variant, slot};

/// Makes one case that wants only the last block of each row, and one that wants only the blocks that a cut adds.
/// Scores fall with the block's index, so the cut adds blocks 2 to 4.
pub(crate) fn block_lse(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed_lse(variant, size)];
    }
    let shape = shape(variant, spec.number(2, 1..=3));
    let select_block = shape.block_size * filled(variant, slot::PAGES);
    let kv_heads = shape.num_kv_heads;
    let num_heads = kv_heads * spec.number(2, 1..=3) * filled(variant, slot::HEADS);
    let lens = spec.lens(&[7 * select_block + 3, select_block, 1], select_block, 1..=9 * select_block);
    let layer = Layer::new(shape, &lens, spec.seed(1));
    let params = BlockLseParams {
        num_heads,
        num_kv_heads: kv_heads,
        q_stride: num_heads * shape.head_dim + 4 * spec.number(1, 0..=4),
        stride: 11,
        scale: spec.one_of(0.125, &[0.0625, 0.1, 0.125]),
        first: 1,
        rows: count(&lens),
    };
    let q =
        queries(lens.len(), (num_heads * shape.head_dim) as usize, params.q_stride as usize, spec.seed(2));
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let of = (&layer.kv(), select_block as usize);
    let all = cpu::block_lse::block_lse(of, &params, &q, &layer.tables, &rows);
    let sets = lens.len() * kv_heads as usize;
    let scores: Vec<f32> = (0..sets).flat_map(|_| (0..11_u8).map(|b| 20.0 - f32::from(b))).collect();
    let key = |block: u8| sparse_select::topk::order_key(20.0 - f32::from(block));
    let cuts = vec![[key(1), 1, key(4), 4]; sets];
    let [k, _] = layer.words();
    let last = |row: usize, block: u32| block + 1 == lens[row].div_ceil(select_block);
    let added = |_: usize, block: u32| (2..=4).contains(&block);
    let case = |what, first, wanted: &dyn Fn(usize, u32) -> bool| {
        let params = BlockLseParams { first, ..params };
        let here = |i: usize| wanted(i / (11 * num_heads as usize), u32::try_from(i % 11).expect("a block"));
        let want: Vec<f32> =
            all.iter().enumerate().map(|(i, x)| if here(i) { *x } else { f32::NAN }).collect();
        Case::new(what, variant, &params)
            .binding(&q)
            .binding(&k)
            .binding(&layer.tables)
            .binding(&rows)
            .binding(&scores)
            .binding(&cuts)
            .output(ATTENTION, &want)
    };
    vec![case("the last blocks", 1, &last), case("what a cut added", 0, &added)]
}

/// Makes the timed case, with a dispatch for each round. The number of keys that are read depends on the bounds, so
/// the bytes of keys are not counted.
fn timed_lse(variant: &Variant, size: &Size) -> Case {
    let &Size { num_heads, cache, batch, context, select_block, .. } = size;
    let KvShape { num_kv_heads, head_dim, .. } = cache;
    let layer = Layer::empty(cache, &size.lens(), 1);
    let (q_stride, stride) = (num_heads * head_dim, context.div_ceil(select_block));
    let scale = 1.0 / (head_dim as f32).sqrt();
    let params = BlockLseParams { num_heads, num_kv_heads, q_stride, stride, scale, first: 1, rows: batch };
    let later = BlockLseParams { first: 0, ..params };
    let rows: Vec<_> = (0..).zip(&layer.table_of).map(|(row, table)| [row, context, *table, 0]).collect();
    let (sets, lses) = (batch * num_kv_heads, batch * num_heads * stride);
    ROUNDS[1..]
        .iter()
        .fold(Case::new("all rounds", variant, &params), |case, _| case.dispatch(&later))
        .costs(4.0 * f64::from(lses), 0.0)
        .floats_of(batch * q_stride)
        .blocks_of(&cache, layer.num_blocks())
        .binding(&layer.tables)
        .binding(&rows)
        .floats_of(sets * stride)
        .binding(&vec![[0_u32; 4]; sets as usize])
        .floats_of(lses)
}

/// Makes the timed case, with a dispatch for each round. The bytes of the blocks' logits are counted in the case of
/// the kernel that writes them.
fn timed_cut(variant: &Variant, size: &Size) -> Case {
    let &Size { num_heads, cache, batch, context, select_block, .. } = size;
    let (num_kv_heads, stride) = (cache.num_kv_heads, context.div_ceil(select_block));
    let params = |round| {
        let list_stride = stride + 1;
        let (odds, slack, rows) = (9.0, 1.0, batch);
        MassCutParams { num_heads, num_kv_heads, stride, select_block, list_stride, round, odds, slack, rows }
    };
    let (sets, heads) = (batch * num_kv_heads, batch * num_heads);
    let (scores, bounds, lists) = (sets * stride, 2 * heads * stride, sets * (stride + 1));
    ROUNDS[1..]
        .iter()
        .fold(Case::new("all rounds", variant, &params(FIRST)), |case, round| case.dispatch(&params(*round)))
        .costs(4.0 * f64::from(scores + bounds + lists), 0.0)
        .binding(&vec![[0, context, 0, 0]; batch as usize])
        .floats_of(scores)
        .floats_of(bounds)
        .floats_of(heads * stride)
        .binding(&vec![[0_u32; 4]; sets as usize])
        .words_of(lists)
}

/// Makes cases of the first round, in which bounds stand for the logits of all blocks except the last one; some
/// scores are equal.
pub(crate) fn mass_cut(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed_cut(variant, size)];
    }
    let group = filled(variant, slot::GROUP);
    let (kv_heads, select_block) =
        (spec.number(2, 1..=(16 / group).clamp(1, 3)), spec.one_of(32, &[16, 32, 64]));
    let usual = [1100 * select_block + 3, 40 * select_block, 0, 2 * select_block, 5];
    let lens = usual.map(|len| spec.len(len, select_block, 0..=len + select_block));
    let stride = 1110;
    let params = MassCutParams {
        num_heads: kv_heads * group,
        num_kv_heads: kv_heads,
        stride,
        select_block,
        list_stride: stride + 1,
        round: FIRST | LIST,
        odds: 4.0,
        slack: 2.0,
        rows: count(&lens),
    };
    let sets = lens.len() * kv_heads as usize;
    let mut scores: Vec<f32> =
        spec.floats(sets * stride as usize, 3).iter().map(|x| (x * 64.0).round() / 16.0).collect();
    for (set, scores) in scores.chunks_exact_mut(stride as usize).enumerate() {
        let blocks = lens[set / kv_heads as usize].div_ceil(select_block) as usize;
        if blocks > 0 {
            scores[blocks - 1] = f32::INFINITY;
        }
    }
    let heads = lens.len() * params.num_heads as usize;
    let bounds: Vec<[f32; 2]> =
        spec.floats(heads * stride as usize, 4).iter().map(|x| [3.0 * x, 0.25 * x.abs()]).collect();
    let lses = spec.floats(heads * stride as usize, 5);
    let rows: Vec<[u32; 4]> = lens.iter().map(|len| [0, *len, 0, 0]).collect();
    let mut lists = vec![77_777_u32; sets * params.list_stride as usize];
    let before = lists.clone();
    let kept = cpu::mass_cut::first_round(&params, &rows, &scores, &bounds, &lses);
    for (list, kept) in lists.chunks_exact_mut(params.list_stride as usize).zip(&kept) {
        list[0] = count(kept);
        list[1..=kept.len()].copy_from_slice(kept);
    }
    // Where the search ended is told by the lists.
    let anywhere = vec![f32::NAN; 4 * sets];
    let case = Case::new("rows of some and of no blocks", variant, &params)
        .binding(&rows)
        .binding(&scores)
        .binding(&bounds)
        .binding(&lses)
        .finite(Tolerance::EXACT, &anywhere)
        .words(&before, &lists);
    let blocks = |len: &u32| std::iter::repeat_n(len.div_ceil(select_block), kv_heads as usize);
    let limits = lens.iter().flat_map(blocks).collect();
    let lists = Indices { order: Order::List, stride: params.list_stride as usize, limits, none: None };
    let mut cases = vec![case];
    for floats in [&[1][..], &[2, 3], &[1, 2, 3]] {
        cases.extend(hostile::cases(&cases[0], floats, &[(5, lists.clone())]));
    }
    cases
}
