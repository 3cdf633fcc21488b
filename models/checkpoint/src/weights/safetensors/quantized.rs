//! Quantised weights as published in Hugging Face checkpoints: a matrix in several tensors, which is converted to one of the
//! engine's types.
//!
//! Codes and scales stay as they are if a type of [`Dtype`] holds the same numbers. Otherwise they are multiplied once and
//! rounded to f16:
//!
//! | published | becomes |
//! |---|---|
//! | 4 bits, symmetric | `Q4_0` |
//! | 4 bits with zero points (AWQ) | `Q5_0`: the difference to a zero point has five bits |
//! | 8 bits, symmetric | `Q8_0` |
//! | fp8 with scales of blocks of 128, of rows or of all | `F8_E4M3` |
//! | fp8 in other blocks | `F16`, rounded |
//! | fp4 with scales of 32 inputs (DeepSeek V4) | `MXFP4` |
//! | groups in the order of activations or of odd sizes, scales that f16 lacks, 8 bits with zero points | `F16`, rounded |
//!
//! Activations are never quantised, whatever the configuration says of them.

mod config;
mod fp4;
mod fp8;
mod ints;

use std::borrow::Cow;

use safetensors::Dtype as StDtype;

pub use self::config::{Quantization, UnknownQuantization};
pub(super) use self::fp4::mxfp4_blocks;
use super::{Safetensors, Stored};
use crate::weights::{Dtype, Tensor, WeightError};

/// Suffix of each kind of stored part, and suffix of the tensor that it is a part of.
const PARTS: &[(&str, &str)] = &[
    ("_blocks", ""),
    ("_scales", ""),
    (".qweight", ".weight"),
    (".qzeros", ".weight"),
    (".scales", ".weight"),
    (".g_idx", ".weight"),
    (".weight_packed", ".weight"),
    (".weight_scale", ".weight"),
    (".weight_scale_inv", ".weight"),
    // DeepSeek V4's.
    (".scale", ".weight"),
    (".weight_shape", ".weight"),
    (".weight_zero_point", ".weight"),
    (".weight_g_idx", ".weight"),
    // The scale of activations, which stay as they are.
    (".input_scale", ".weight"),
];

/// Returns the name of the tensor that the stored tensor `name` is a part of; `None` if it is not a part.
pub(super) fn whole(name: &str) -> Option<String> {
    let (end, whole) = PARTS.iter().find(|(end, _)| name.ends_with(end))?;
    Some(format!("{}{whole}", name.strip_suffix(end)?))
}

/// Whether the matrix `name` is stored in several tensors, none of which is called `name`.
pub(super) fn in_parts(name: &str, has: impl Fn(&str) -> bool) -> bool {
    let part = |end: &str| name.strip_suffix(".weight").is_some_and(|stem| has(&format!("{stem}{end}")));
    part(".qweight") || part(".weight_packed")
}

/// The tensors that matrices are made of.
pub(super) struct Parts<'a> {
    pub(super) quantization: Quantization,
    pub(super) file: &'a Safetensors,
}

impl<'a> Parts<'a> {
    /// Returns the matrix `name` from packed codes and other parts, none of which has that name; `None` if there are no
    /// such parts.
    pub(super) fn packed(&self, name: &str) -> Result<Option<Tensor<'a>>, WeightError> {
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(None) };
        let part = |end: &str| self.file.stored(&format!("{stem}{end}"));
        let matrix = match (self.quantization, part(".qweight"), part(".weight_packed")) {
            (Quantization::Gptq(gptq), Some(codes), _) => ints::gptq(gptq, codes, &part),
            (Quantization::Awq, Some(codes), _) => ints::awq(codes, &part),
            (Quantization::CompressedInts { bits }, _, Some(codes)) => ints::compressed(bits, codes, &part),
            (_, None, None) => return Ok(None),
            _ => Err("its layout is not the one that quantization_config states".to_owned()),
        };
        let matrix = matrix.map_err(|reason| broken(name, reason))?;
        Ok(Some(matrix.tensor(name)))
    }

    /// Returns the matrix `name` if the tensor of that name holds its codes; `None` otherwise.
    pub(super) fn scaled(&self, name: &str, codes: Stored<'a>) -> Result<Option<Tensor<'a>>, WeightError> {
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(None) };
        let part = |end: &str| self.file.stored(&format!("{stem}{end}"));
        let scales = [".weight_scale_inv", ".weight_scale", ".scale"].into_iter().find_map(part);
        let tensor = match (codes.dtype, scales) {
            (StDtype::F8_E4M3, Some(scales)) => fp8::tensor(name, self.quantization.block(), codes, scales),
            (StDtype::I8, Some(scales)) if scales.dtype == StDtype::F8_E8M0 => {
                fp4::tensor(name, codes, scales)
            }
            (StDtype::I8, Some(_)) if part(".weight_zero_point").is_some() => {
                Err("bytes with zero points are not implemented".to_owned())
            }
            (StDtype::I8, Some(scales)) => ints::int8(codes, scales).map(|matrix| matrix.tensor(name)),
            (StDtype::F8_E4M3 | StDtype::I8, None) => Err("it has no scales".to_owned()),
            _ => return Ok(None),
        };
        tensor.map(Some).map_err(|reason| broken(name, reason))
    }
}

fn broken(name: &str, reason: String) -> WeightError {
    WeightError::Quantized { tensor: name.to_owned(), reason }
}

/// Rounds a matrix `[rows, width]` to f16.
fn in_f16(name: &str, shape: [usize; 2], values: impl Iterator<Item = f32>) -> Tensor<'static> {
    let data: Vec<u8> = values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect();
    Tensor { name: Cow::Owned(name.to_owned()), dtype: Dtype::F16, shape: shape.to_vec(), data: data.into() }
}
