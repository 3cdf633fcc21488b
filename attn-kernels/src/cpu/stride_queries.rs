//! Reference of `stride_queries`.

use crate::kernel::stride_queries::StrideQueriesParams;

/// Returns the rows of strides `[num_heads, rows, head_dim / 8, stride, 8]` of the queries `q`, in f32.
#[must_use]
pub fn stride_queries(params: &StrideQueriesParams, head_dim: usize, stride: usize, q: &[f32]) -> Vec<f32> {
    let of_token = |head: usize, token: usize| {
        let token =
            token.checked_sub(params.front as usize).filter(|token| *token < params.q_len as usize)?;
        let row = params.q_first as usize + token;
        Some(&q[row * params.q_stride as usize + head * head_dim..][..head_dim])
    };
    let mut out = Vec::new();
    for head in 0..params.num_heads as usize {
        for row in (params.first_row..params.first_row + params.rows).map(|row| row as usize) {
            for chunk in 0..head_dim / 8 {
                for t in 0..stride {
                    let query = of_token(head, row * stride + stride - 1 - t);
                    out.extend((0..8).map(|i| query.map_or(0.0, |query| query[chunk * 8 + i])));
                }
            }
        }
    }
    out
}
