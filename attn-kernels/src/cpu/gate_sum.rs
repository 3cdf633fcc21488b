//! Reference of `gate_sum`.

use super::f32_of;
use crate::kernel::gate_sum::BRANCHES;

/// Returns the sum of `branches` `[heads, head_dim]`, each multiplied by the sigmoid of its gate in `gates` `[heads, 3]`.
#[must_use]
pub fn gate_sum(head_dim: usize, gates: &[f32], branches: [&[f32]; BRANCHES as usize]) -> Vec<f32> {
    let sum = |at: usize| {
        let gates = gates[at / head_dim * branches.len()..].iter().map(|gate| f64::from(*gate));
        let terms = branches.iter().zip(gates).map(|(x, gate)| f64::from(x[at]) / (1.0 + (-gate).exp()));
        f32_of(terms.sum())
    };
    (0..branches[0].len()).map(sum).collect()
}
