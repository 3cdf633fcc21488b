//! Cases of `masked_attention`.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::layer::{ATTENTION, Layer, queries};
use super::options::Lists;
use super::{Case, count, filled, shape};
use crate::cpu;
use crate::kernel::masked_attention::{self, MaskedAttentionParams, MaskedRow};
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant) -> Vec<Case> {
    let shape = shape(variant, 2);
    let (num_heads, select_block) = (6, filled(variant, slot::SELECT_BLOCK));
    let lens = [300, 1, 130, 0];
    let layer = Layer::new(shape, &lens, 5);
    let lists = Lists::random(lens.into_iter(), select_block, 0.7, 6);
    let mask_stride = 300_u32.div_ceil(32);
    let mut rng = StdRng::seed_from_u64(7);
    let mut masks: Vec<u32> = (0..4 * mask_stride).map(|_| rng.random()).collect();
    // The mask leaves nothing of one row.
    masks[2 * mask_stride as usize..3 * mask_stride as usize].fill(0);
    // Queries in reverse, outputs in every other row.
    let row = |(index, len): (u32, u32)| MaskedRow {
        q: 3 - index,
        out: 2 * index,
        mask: index,
        list: index,
        len,
        table: layer.table_of[index as usize],
    };
    let rows: Vec<MaskedRow> = (0..).zip(lens).map(row).collect();
    let width = num_heads * shape.head_dim;
    let params = MaskedAttentionParams {
        num_heads,
        num_kv_heads: 2,
        q_stride: width + 4,
        list_stride: lists.stride,
        mask_stride,
        rows: count(&rows),
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let q = queries(4, width as usize, width as usize + 4, 8);
    let mut out = vec![f32::NAN; (8 * width) as usize];
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
    let case = Case::new("rows out of order", variant, &params, masked_attention::grid(&params))
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
