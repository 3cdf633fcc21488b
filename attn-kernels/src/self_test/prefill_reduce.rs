//! Cases of `prefill_reduce`.

use super::layer::floats;
use super::lse_merge::MERGE;
use super::{Case, filled};
use crate::cpu;
use crate::kernel::prefill_reduce::{self, PrefillReduceParams};
use crate::{Variant, slot};

pub(crate) fn cases(variant: &Variant) -> Vec<Case> {
    let dim = filled(variant, slot::HEAD_DIM);
    let head_dim = dim as usize;
    // Parts without keys, with equal and with very different weights.
    let lse = [f32::NEG_INFINITY, f32::INFINITY, 0.0, -20.0, 20.0, 3.5];
    let part_lse: Vec<f32> = (0..3 * 36).map(|i| lse[[i % 6, i / 6 % 6, i % 5][i / 36]]).collect();
    let part_out = floats(3 * 36 * head_dim, 1);
    let [want_out, want_lse] = cpu::prefill_reduce::prefill_reduce(head_dim, 36, &part_out, &part_lse);
    // The first four rows stay as they are.
    let (before, lse_before) = (floats(36 * head_dim, 2), floats(36, 3));
    let out = [&before[..4 * head_dim], &want_out[4 * head_dim..]].concat();
    let lse = [&lse_before[..4], &want_lse[4..]].concat();
    let neg_inf = f32::NEG_INFINITY;
    let params = PrefillReduceParams { rows: 32, first_row: 4, parts: 3, part_rows: 36, neg_inf };
    let case = Case::new("three parts", variant, &params, prefill_reduce::grid(dim, 32))
        .binding(&part_out)
        .binding(&part_lse)
        .updated(&before, MERGE, &out)
        .updated(&lse_before, MERGE, &lse);
    vec![case]
}
