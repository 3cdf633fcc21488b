//! Reference of `hyper_collapse`.

use super::f32_of;
use crate::kernel::hyper_collapse::{HyperCollapseParams, Reader};

/// Computes the weighted sum of each row's streams, `[rows, width]`. For a block, also computes the row's gates: one
/// per stream, then one per pair `[from, to]` of streams.
pub fn hyper_collapse(
    params: &HyperCollapseParams,
    streams: usize,
    reader: Reader,
    mixes: &[f32],
    x: &[f32],
    affine: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let (width, eps) = (params.width as usize, f64::from(params.eps));
    let parts = match reader {
        Reader::Block => streams * (2 + streams),
        Reader::Head => streams,
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut out, mut gates) = (Vec::new(), Vec::new());
    for (mixes, x) in mixes.chunks_exact(parts).zip(x.chunks_exact(streams * width)) {
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
        let norm = 1.0 / (mean + f64::from(params.norm_eps)).sqrt();
        let factor = |i: usize| f64::from(affine[parts + (i / streams).min(2)]);
        let mixed: Vec<f64> =
            (0..parts).map(|i| f64::from(mixes[i]) * norm * factor(i) + f64::from(affine[i])).collect();
        out.extend((0..width).map(|d| {
            let weighed = |s: usize| (sigmoid(mixed[s]) + eps) * f64::from(x[s * width + d]);
            f32_of((0..streams).map(weighed).sum())
        }));
        if reader == Reader::Block {
            gates.extend(mixed[streams..2 * streams].iter().map(|x| f32_of(2.0 * sigmoid(*x))));
            let comb = doubly_stochastic(&mixed[2 * streams..], streams, params.rounds, eps);
            gates.extend(comb.into_iter().map(f32_of));
        }
    }
    (out, gates)
}

/// Makes a matrix doubly stochastic by Sinkhorn-Knopp iterations that start from the softmax of each row.
fn doubly_stochastic(logits: &[f64], n: usize, rounds: u32, eps: f64) -> Vec<f64> {
    let softmax = |row: &[f64]| -> Vec<f64> {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
        row.iter().map(|x| (x - top).exp() / sum + eps).collect()
    };
    let mut comb: Vec<f64> = logits.chunks_exact(n).flat_map(softmax).collect();
    for round in 0..rounds {
        for row in comb.chunks_exact_mut(n).filter(|_| round > 0) {
            let sum = row.iter().sum::<f64>() + eps;
            row.iter_mut().for_each(|x| *x /= sum);
        }
        for column in 0..n {
            let sum = comb[column..].iter().step_by(n).sum::<f64>() + eps;
            comb[column..].iter_mut().step_by(n).for_each(|x| *x /= sum);
        }
    }
    comb
}
