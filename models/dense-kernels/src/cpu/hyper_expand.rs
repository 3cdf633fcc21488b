//! Reference of `hyper_expand`.

use super::f32_of;
use crate::kernel::hyper_expand::{HyperExpandParams, StreamForm};

/// Replaces every stream, in place, by its mix of all streams plus its share of `block`. With [`StreamForm::Begin`],
/// every stream becomes a copy of `block`.
pub fn hyper_expand(
    params: &HyperExpandParams,
    streams: usize,
    form: StreamForm,
    block: &[f32],
    gates: &[f32],
    x: &mut [f32],
) {
    let width = params.width as usize;
    let rows = x.chunks_exact_mut(streams * width).zip(block.chunks_exact(width));
    for (row, (x, block)) in rows.enumerate().take(params.rows as usize) {
        let before = x.to_vec();
        let gates = &gates[row * streams * (1 + streams)..];
        for to in 0..streams {
            for d in 0..width {
                let kept = |from: usize| {
                    f64::from(gates[streams + from * streams + to]) * f64::from(before[from * width + d])
                };
                x[to * width + d] = match form {
                    StreamForm::Begin => block[d],
                    StreamForm::Add => f32_of(
                        f64::from(gates[to]) * f64::from(block[d]) + (0..streams).map(kept).sum::<f64>(),
                    ),
                };
            }
        }
    }
}
