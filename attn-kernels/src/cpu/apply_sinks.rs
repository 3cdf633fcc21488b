//! Reference of `apply_sinks`.

use super::f32_of;
use crate::kernel::apply_sinks::ApplySinksParams;

/// Scales rows of `out` `[*, num_heads, head_dim]` from `first_row` on by the share of the softmax that is not in the `sinks`
/// `[num_heads]`.
pub fn apply_sinks(head_dim: usize, params: &ApplySinksParams, lse: &[f32], sinks: &[f32], out: &mut [f32]) {
    let heads = params.num_heads as usize;
    let first = params.first_row as usize * heads;
    for at in first..first + params.rows as usize * heads {
        let (keys, sink) = (f64::from(lse[at]).exp(), f64::from(sinks[at % heads]).exp());
        let share = if keys > 0.0 { keys / (keys + sink) } else { 0.0 };
        for x in &mut out[at * head_dim..(at + 1) * head_dim] {
            *x = f32_of(f64::from(*x) * share);
        }
    }
}
