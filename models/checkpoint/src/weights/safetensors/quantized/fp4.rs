//! Matrices in e2m1 with an e8m0 scale for each 32 inputs, as DeepSeek V4 publishes its experts.

use std::borrow::Cow;

use safetensors::Dtype as StDtype;

use super::super::Stored;
use crate::weights::{Dtype, Tensor};

/// Bytes of the codes of one block.
const BYTES: usize = Dtype::MXFP4.block_elems() / 2;

/// Converts codes `[rows, width / 2]`, two per byte, and scales `[rows, width / 32]` to [`Dtype::MXFP4`] without rounding.
pub(super) fn tensor(name: &str, codes: Stored<'_>, scales: Stored<'_>) -> Result<Tensor<'static>, String> {
    let &[rows, bytes] = codes.shape else { return Err(format!("shape {:?} is no matrix", codes.shape)) };
    if scales.dtype != StDtype::F8_E8M0
        || !bytes.is_multiple_of(BYTES)
        || scales.shape != [rows, bytes / BYTES]
    {
        return Err(format!(
            "scales {} {:?} are not one e8m0 for 32 codes of fp4 in bytes {:?}",
            scales.dtype, scales.shape, codes.shape
        ));
    }
    Ok(Tensor {
        name: Cow::Owned(name.to_owned()),
        dtype: Dtype::MXFP4,
        shape: vec![rows, 2 * bytes],
        data: mxfp4_blocks(codes.data, scales.data).into(),
    })
}

/// Interleaves scales and codes, and reorders nibbles: a byte of the published format holds elements `2j` and
/// `2j + 1`, a byte of ggml's holds `j` and `j + 16`.
pub(in super::super) fn mxfp4_blocks(codes: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(codes.len() + scales.len());
    for (block, scale) in codes.chunks_exact(BYTES).zip(scales) {
        let nibble = |i: usize| (block[i / 2] >> (4 * (i % 2))) & 0xF;
        out.push(*scale);
        out.extend((0..BYTES).map(|j| nibble(j) | (nibble(j + BYTES) << 4)));
    }
    out
}
