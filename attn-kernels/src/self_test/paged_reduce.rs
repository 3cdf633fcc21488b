//! Cases of `paged_reduce`.

use super::layer::ATTENTION;
use super::options::AttentionInputs;
use super::paged_decode::max_partitions;
use super::{Case, Spec, count, filled};
use crate::cpu;
use crate::kernel::paged_decode::PARTITION;
use crate::kernel::paged_reduce::PagedReduceParams;
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let head_dim = filled(variant, slot::HEAD_DIM) as usize;
    let usual = [1, 0, PARTITION, PARTITION + 1, 19 * PARTITION + 7, 64 * PARTITION];
    let partition_size = spec.partition(&[128, PARTITION, 1024]);
    let lens = spec.lens(&usual, partition_size, 0..=70 * PARTITION);
    let (kv_heads, count) = (spec.kv_heads(2, 1..=4), count(&lens));
    let num_heads = kv_heads * spec.group(3, 1..=9);
    let rows: Vec<[u32; 4]> = (0..count).rev().zip(&lens).map(|(row, len)| [row, *len, 0, 0]).collect();
    let asked = AttentionInputs::of(variant, [num_heads, kv_heads], &lens, spec);
    let max_partitions = max_partitions(&asked, kv_heads, partition_size, &rows, spec);
    let params = PagedReduceParams {
        num_heads,
        num_kv_heads: kv_heads,
        max_partitions,
        list_stride: asked.list_stride(),
        first_row: 0,
        partition_size,
        rows: count,
    };
    let (values, stats) = (filled(variant, slot::HEAD_DIM) * num_heads * count, 2 * num_heads * count);
    let case = Case::new("rows of no and of many partitions", variant, &params)
        .costs(4.0 * f64::from((values + stats) * max_partitions + values), 0.0);
    let lists = asked.lists.as_ref().and(asked.words());
    if spec.size().is_some() {
        let case = case.floats_of(values * max_partitions).floats_of(stats * max_partitions).binding(&rows);
        return vec![case.floats_of(values).optional(lists.as_deref()).optional(asked.sinks())];
    }
    let heads = (count * num_heads) as usize;
    let partial = spec.floats(heads * max_partitions as usize * head_dim, 1);
    // Maxima in -8..8, sums of at least one key.
    let stat = |x: &f32| [x * 8.0, 1.0 + x.abs()];
    let stats: Vec<[f32; 2]> = spec.floats(heads * max_partitions as usize, 2).iter().map(stat).collect();
    let mut out = vec![f32::NAN; heads * head_dim];
    cpu::paged_reduce::paged_reduce(
        head_dim,
        &params,
        &partial,
        &stats,
        &rows,
        &mut out,
        &asked.options(),
        asked.sinks(),
    );
    let case = case.binding(&partial).binding(&stats).binding(&rows).output(ATTENTION, &out);
    vec![case.optional(lists.as_deref()).optional(asked.sinks())]
}
