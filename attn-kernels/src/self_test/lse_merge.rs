//! Cases of `lse_merge` and `gate_sum`.

use super::{Case, Spec, filled};
use crate::cpu::{self, Tolerance};
use crate::kernel::gate_sum::GateSumParams;
use crate::kernel::lse_merge::LseMergeParams;
use crate::{Variant, slot};

/// Tolerance of weights, which are `exp` of a difference of at most 40: 3 + 2|x| units in the last place (WGSL's bound).
pub(crate) const MERGE: Tolerance = Tolerance { abs: 1e-6, rel: 2e-5 };

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let dim = filled(variant, slot::HEAD_DIM);
    let head_dim = dim as usize;
    let new = |name, params: &LseMergeParams| {
        Case::new(name, variant, params).costs(12.0 * f64::from(params.rows) * f64::from(dim), 0.0)
    };
    if let Some(size) = spec.size() {
        let rows = size.rows * size.num_heads;
        let of_side = |case: Case| case.floats_of(rows * dim).floats_of(rows);
        return vec![of_side(of_side(new("two sets of keys", &LseMergeParams::new(rows))))];
    }
    // Sides without keys, with equal and with very different weights.
    let lse = [f32::NEG_INFINITY, f32::INFINITY, 0.0, -20.0, 20.0, 3.5].map(|usual| {
        spec.one_of(usual, &[usual, -700.0, 700.0, spec.number(0, 0..=40_000) as f32 / 1e3 - 20.0])
    });
    let a_lse: Vec<f32> = lse.iter().flat_map(|x| [*x; 6]).collect();
    let b_lse = lse.repeat(6);
    let (a, b) = (spec.floats(36 * head_dim, 1), spec.floats(36 * head_dim, 2));
    let case = |name, [first_row, end]: [u32; 2]| {
        let (mut out, mut out_lse) = (a.clone(), a_lse.clone());
        let of = |per_row: usize| first_row as usize * per_row..end as usize * per_row;
        let (outs, rows) = (of(head_dim), of(1));
        let (b_out, b_lse_of) = (&b[outs.clone()], &b_lse[rows.clone()]);
        cpu::lse_merge::lse_merge(head_dim, b_out, b_lse_of, &mut out[outs], &mut out_lse[rows]);
        let params = LseMergeParams { first_row, ..LseMergeParams::new(end - first_row) };
        new(name, &params)
            .binding(&b)
            .binding(&b_lse)
            .updated(&a, MERGE, &out)
            .updated(&a_lse, MERGE, &out_lse)
    };
    vec![
        case("two sets of keys", [0, 36]),
        case("rows in the middle", [spec.number(5, 0..=18), spec.number(29, 19..=36)]),
    ]
}

/// Makes cases with gates that are open, closed, and in between.
pub(crate) fn gate_sum(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let heads = spec.rows(37, 1..=150);
    let dim = filled(variant, slot::HEAD_DIM);
    let gates: Vec<f32> = spec.floats(heads as usize * 3, 1).iter().map(|x| (x * 2.0).powi(9)).collect();
    let branches = [2, 3, 4].map(|seed| spec.floats((heads * dim) as usize, seed));
    let [compressed, selected, window] = &branches;
    let want = cpu::gate_sum::gate_sum(dim as usize, &gates, [compressed, selected, window]);
    let params = GateSumParams { heads };
    let case = Case::new("gates of all sizes", variant, &params)
        .binding(&gates)
        .binding(compressed)
        .binding(selected)
        .binding(window)
        .output(MERGE, &want);
    vec![case]
}
