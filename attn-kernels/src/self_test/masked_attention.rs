//! Cases of `masked_attention`.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::layer::{ATTENTION, queries};
use super::{Case, Spec, count, filled, shape, token_bytes};
use crate::cpu;
use crate::kernel::masked_attention::{MaskedAttentionParams, MaskedRow};
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let shape = shape(variant, spec.kv_heads(2, 1..=4));
    let num_heads = shape.num_kv_heads * spec.group(3, 1..=8);
    let select_block = filled(variant, slot::SELECT_BLOCK);
    let lens = spec.lens(&[300, 1, 130, 0], shape.block_size, 0..=300);
    let layer = spec.layer(shape, &lens, 5);
    let lists = spec.lists(lens.iter().copied(), select_block, (0.7, 6));
    let (count, mask_stride) = (count(&lens), spec.named(|size| size.context.div_ceil(32), 10, 10..=14));
    let tokens = lists.tokens(lens.iter().copied());
    let mut rng = StdRng::seed_from_u64(spec.seed(7));
    // Queries in reverse, outputs in every other row.
    let row = |(index, len): (u32, u32)| MaskedRow {
        q: count - 1 - index,
        out: 2 * index,
        mask: index,
        list: index,
        len,
        table: layer.table_of[index as usize],
    };
    let rows: Vec<MaskedRow> = (0..).zip(lens).map(row).collect();
    let width = num_heads * shape.head_dim;
    let q_stride = width + 4 * spec.number(1, 0..=4);
    let params = MaskedAttentionParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride,
        list_stride: lists.stride,
        mask_stride,
        rows: count,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let case = Case::new("rows out of order", variant, &params)
        .costs(tokens * token_bytes(&shape), tokens * 4.0 * f64::from(width));
    if spec.size().is_some() {
        let all = vec![u32::MAX; (count * mask_stride) as usize];
        let cache = |case: Case| case.blocks_of(&shape, layer.num_blocks());
        let case = cache(cache(case.floats_of(count * width))).binding(&layer.tables).binding(&rows);
        return vec![case.binding(&all).floats_of(2 * count * width).binding(&lists.lists)];
    }
    let mut masks: Vec<u32> = (0..count * mask_stride).map(|_| rng.random()).collect();
    // The mask leaves nothing of one row.
    masks.chunks_mut(mask_stride as usize).skip(2).take(1).for_each(|mask| mask.fill(0));
    let q = queries(rows.len(), width as usize, q_stride as usize, spec.seed(8));
    let mut out = vec![f32::NAN; (2 * count * width) as usize];
    let (kv, selected) = (layer.kv(), lists.selected());
    cpu::masked_attention::masked_attention(
        &kv,
        &params,
        &q,
        &layer.tables,
        &rows,
        &masks,
        selected,
        &mut out,
    );
    let [k, v] = layer.words();
    let case = case
        .binding(&q)
        .binding(&k)
        .binding(&v)
        .binding(&layer.tables)
        .binding(&rows)
        .binding(&masks)
        .finite(ATTENTION, &out)
        .binding(&lists.lists);
    vec![case]
}
