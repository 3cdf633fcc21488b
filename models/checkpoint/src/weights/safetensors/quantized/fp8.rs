//! Matrices in fp8 with a scale for each block, for each row, or for all.

use std::borrow::Cow;

use super::super::Stored;
use super::in_f16;
use crate::weights::dequant::E4M3;
use crate::weights::{Dtype, Tensor};

/// A matrix of codes.
struct Fp8<'a> {
    rows: usize,
    width: usize,
    codes: &'a [u8],
    /// Scale of each block of `by_rows` rows and `by_columns` columns, in row-major order.
    scales: Vec<f32>,
    by_rows: usize,
    by_columns: usize,
}

/// Returns the matrix as [`Dtype::F8_E4M3`] if blocks of this type hold the same numbers; otherwise rounded to f16.
pub(super) fn tensor(
    name: &str,
    block: [usize; 2],
    codes: Stored<'_>,
    scales: Stored<'_>,
) -> Result<Tensor<'static>, String> {
    let matrix = Fp8::new(block, codes, &scales)?;
    let shape = [matrix.rows, matrix.width];
    if !matrix.has_blocks() {
        return Ok(in_f16(name, shape, (0..codes.data.len()).map(|at| matrix.value(at))));
    }
    let (name, data) = (Cow::Owned(name.to_owned()), matrix.blocks().into());
    Ok(Tensor { name, dtype: Dtype::F8_E4M3, shape: shape.to_vec(), data })
}

impl<'a> Fp8<'a> {
    fn new(block: [usize; 2], codes: Stored<'a>, scales: &Stored<'_>) -> Result<Self, String> {
        let &[rows, width] = codes.shape else { return Err(format!("shape {:?} is no matrix", codes.shape)) };
        let values = scales.to_f32().ok_or_else(|| format!("scales are stored as {}", scales.dtype))?;
        let [by_rows, by_columns] = match *scales.shape {
            [] | [1] | [1, 1] => [rows.max(1), width.max(1)],
            [n] | [n, 1] if n == rows => [1, width.max(1)],
            [n, m] if [n, m] == [rows.div_ceil(block[0]), width.div_ceil(block[1])] => block,
            _ => {
                let [down, across] = block;
                return Err(format!(
                    "scales {:?} fit neither {rows} rows nor blocks of {down} by {across} of {:?}",
                    scales.shape, codes.shape
                ));
            }
        };
        Ok(Self { rows, width, codes: codes.data, scales: values, by_rows, by_columns })
    }

    /// Whether blocks of [`Dtype::F8_E4M3`] hold the same numbers as the matrix. They do not if a code is NaN, since
    /// kernels treat all codes as numbers.
    fn has_blocks(&self) -> bool {
        let block = Dtype::F8_E4M3.block_elems();
        let spans = self.by_columns >= self.width || self.by_columns.is_multiple_of(block);
        spans && self.width.is_multiple_of(block) && self.codes.iter().all(|code| code & 0x7f != 0x7f)
    }

    fn blocks(&self) -> Vec<u8> {
        let block = Dtype::F8_E4M3.block_elems();
        let mut out = Vec::with_capacity(self.codes.len() / block * Dtype::F8_E4M3.block_bytes());
        for (i, codes) in self.codes.chunks_exact(block).enumerate() {
            out.extend(self.scale(i * block).to_le_bytes());
            out.extend(codes);
        }
        out
    }

    /// The scale of an element.
    fn scale(&self, at: usize) -> f32 {
        let (row, column) = (at / self.width, at % self.width);
        self.scales[row / self.by_rows * self.width.div_ceil(self.by_columns) + column / self.by_columns]
    }

    fn value(&self, at: usize) -> f32 {
        E4M3[usize::from(self.codes[at])] * self.scale(at)
    }
}
