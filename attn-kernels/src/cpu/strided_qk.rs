//! Reference of `strided_qk`: the scores of `sparse-select`, reduced.

use super::f32_of;
use crate::kernel::strided_qk::StridedQkParams;
use sparse_select::Heads;
use sparse_select::attention::log_sum_exp;
use sparse_select::xattn::score::{Reshape, strided_scores};

/// Computes the parts `[num_heads, rows, part_stride]` of the chunk's queries `q`, after `front` zero queries,
/// against all keys `k`; minus infinity for parts without a column that the row sees.
#[must_use]
pub fn strided_qk(
    params: &StridedQkParams,
    front: usize,
    stride: usize,
    part: usize,
    q: &Heads<'_>,
    k: &Heads<'_>,
) -> Vec<f32> {
    let first = params.first_row as usize;
    let rows = first..first + params.rows as usize;
    let mut parts = vec![f32::NEG_INFINITY; q.heads() * rows.len() * params.part_stride as usize];
    let mut out = parts.chunks_mut(params.part_stride as usize);
    for head in 0..q.heads() {
        let scores = strided_scores((q, head, front), k, stride, Reshape::Inverse, rows.clone());
        for (row, values) in rows.clone().zip(scores.values.chunks(scores.cols)) {
            let own = params.key_start as usize + row;
            let seen = if params.causal == 1 { scores.cols.min(own + 1) } else { scores.cols };
            let of_row = out.next().expect("a row of parts for every row of scores");
            for (out, values) in of_row.iter_mut().zip(values[..seen].chunks(part)) {
                let scaled = values.iter().map(|&s| f64::from(s) * f64::from(params.scale));
                let natural = log_sum_exp(scaled.map(|s| s * std::f64::consts::LN_2));
                *out = f32_of(natural * std::f64::consts::LOG2_E);
            }
        }
    }
    parts
}
