//! Reference of `embed`.

use crate::Tensor;
use crate::kernel::embed::EmbedParams;

/// Writes the row of each token in `matrix` `[vocab, width]`, times a factor, to `out` `[rows, width]`. Output rows
/// whose tokens are outside the shard `first..first + cols` are left as they are.
///
/// # Panics
/// When a token of the shard is not in the matrix.
pub fn embed(params: &EmbedParams, tokens: &[u32], matrix: &Tensor<'_>, out: &mut [f32]) {
    let (width, shard) = (matrix.shape[1], params.first..params.first + params.cols);
    let values = matrix.to_f32();
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(width)) {
        if shard.contains(token) {
            let row = &values[*token as usize * width..][..width];
            out.iter_mut().zip(row).for_each(|(out, value)| *out = params.scale * value);
        }
    }
}
