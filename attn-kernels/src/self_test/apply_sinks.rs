//! Cases of `apply_sinks`.

use super::{Case, Spec, filled};
use crate::cpu::{self, Tolerance};
use crate::kernel::apply_sinks::ApplySinksParams;
use crate::{Variant, slot};

/// Tolerance of shares, which are `exp` of a difference of at most 40: 3 + 2|x| units in the last place (WGSL's bound).
const SHARE: Tolerance = Tolerance { abs: 1e-6, rel: 2e-5 };

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let head_dim = filled(variant, slot::HEAD_DIM);
    let num_heads = spec.named(|size| size.num_heads, 5, 1..=40);
    let (first_row, rows) = (spec.number(2, 0..=5), spec.rows(9, 1..=40));
    let params = ApplySinksParams { first_row, rows, num_heads };
    let case = Case::new("heads with and without a sink", variant, &params)
        .costs(4.0 * f64::from(rows * num_heads) * f64::from(1 + 2 * head_dim), 0.0);
    if spec.size().is_some() {
        let lses = rows * num_heads;
        return vec![case.floats_of(lses).floats_of(num_heads).floats_of(lses * head_dim)];
    }
    let count = ((first_row + rows + 2) * num_heads) as usize;
    let mut before = spec.floats(count * head_dim as usize, 1);
    let mut lse: Vec<f32> = spec.floats(count, 2).iter().map(|x| x * 20.0).collect();
    let sinks: Vec<f32> =
        [f32::NEG_INFINITY, -15.0, 0.0, 4.0, 20.0].into_iter().cycle().take(num_heads as usize).collect();
    // A row without keys.
    let none = (first_row * num_heads) as usize;
    lse[none] = f32::NEG_INFINITY;
    before[none * head_dim as usize..(none + 1) * head_dim as usize].fill(0.0);
    let mut after = before.clone();
    cpu::apply_sinks::apply_sinks(head_dim as usize, &params, &lse, &sinks, &mut after);
    vec![case.binding(&lse).binding(&sinks).updated(&before, SHARE, &after)]
}
