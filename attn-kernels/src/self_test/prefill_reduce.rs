//! Cases of `prefill_reduce`.

use super::lse_merge::MERGE;
use super::{Case, Spec, count, filled};
use crate::cpu;
use crate::kernel::prefill_reduce::PrefillReduceParams;
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let head_dim = filled(variant, slot::HEAD_DIM) as usize;
    let rows = spec.rows(36, 5..=100) as usize;
    let parts = spec.named(|_| 4, 3, 1..=8);
    let of_parts = parts as usize * rows;
    let first_row = spec.number(4, 0..=4);
    // Parts without keys, with equal and with very different weights.
    let lse = [f32::NEG_INFINITY, f32::INFINITY, 0.0, -20.0, 20.0, 3.5];
    let part_lse: Vec<f32> = (0..of_parts).map(|i| lse[[i % 6, i / 6 % 6, i % 5][i / rows % 3]]).collect();
    let part_out = spec.floats(of_parts * head_dim, 1);
    let [want_out, want_lse] = cpu::prefill_reduce::prefill_reduce(head_dim, rows, &part_out, &part_lse);
    // The first rows stay as they are.
    let kept = first_row as usize;
    let (before, lse_before) = (spec.floats(rows * head_dim, 2), spec.floats(rows, 3));
    let out = [&before[..kept * head_dim], &want_out[kept * head_dim..]].concat();
    let lse = [&lse_before[..kept], &want_lse[kept..]].concat();
    let (part_rows, neg_inf) = (count(&part_lse) / parts, f32::NEG_INFINITY);
    let params = PrefillReduceParams { rows: part_rows - first_row, first_row, parts, part_rows, neg_inf };
    // The results before are not read.
    let moved = [part_out.len(), part_lse.len(), out.len(), lse.len()].into_iter().sum::<usize>();
    let case = Case::new("three parts", variant, &params)
        .costs(4.0 * moved as f64, 0.0)
        .binding(&part_out)
        .binding(&part_lse)
        .updated(&before, MERGE, &out)
        .updated(&lse_before, MERGE, &lse);
    vec![case]
}
