//! Reference of `index_query_fp8`.

use sparse_select::dsa::fp8::{self, ScaleFormat};

/// Rotates queries `[vectors, head_dim]` and replaces them by the values of their fp8 codes; `gates` `[vectors]` are
/// multiplied by the scales.
pub fn index_query_fp8(head_dim: usize, q: &mut [f32], gates: &mut [f32]) {
    for (query, gate) in q.chunks_exact_mut(head_dim).zip(gates) {
        fp8::hadamard(query);
        let (codes, scale) = fp8::quantise(query, ScaleFormat::Ue8m0);
        query.iter_mut().zip(codes).for_each(|(x, code)| *x = fp8::decode(code));
        *gate *= scale;
    }
}
