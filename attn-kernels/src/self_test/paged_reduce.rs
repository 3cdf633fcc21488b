//! Cases of `paged_reduce`.

use super::layer::ATTENTION;
use super::options::AttentionInputs;
use super::paged_decode::max_partitions;
use super::{Case, Spec, count, filled};
use crate::cpu;
use crate::kernel::paged_decode::PARTITION;
use crate::kernel::paged_reduce::{self, PagedReduceParams};
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let head_dim = filled(variant, slot::HEAD_DIM) as usize;
    let usual = [1, 0, PARTITION, PARTITION + 1, 19 * PARTITION + 7, 64 * PARTITION];
    let partition_size = spec.one_of(PARTITION, &[128, PARTITION, 1024]);
    let lens = spec.lens(&usual, partition_size, 0..=70 * PARTITION);
    let (kv_heads, count) = (spec.number(2, 1..=4), count(&lens));
    let num_heads = kv_heads * spec.number(3, 1..=9);
    let rows: Vec<[u32; 4]> = (0..count).rev().zip(&lens).map(|(row, len)| [row, *len, 0, 0]).collect();
    let asked = AttentionInputs::of(variant, [num_heads, kv_heads], &lens, spec);
    let max_partitions = max_partitions(&asked, kv_heads, partition_size, &rows);
    let params = PagedReduceParams {
        num_heads,
        num_kv_heads: kv_heads,
        max_partitions,
        list_stride: asked.list_stride(),
        first_row: 0,
        partition_size,
    };
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
    let case =
        Case::new("rows of no and of many partitions", variant, &params, paged_reduce::grid(&params, count))
            .binding(&partial)
            .binding(&stats)
            .binding(&rows)
            .output(ATTENTION, &out)
            .optional(asked.lists.as_ref().and(asked.words()).as_deref())
            .optional(asked.sinks());
    vec![case]
}
