//! Matrices in fp8 with a scale for each block, for each row, or for all.

use super::super::Tensor;
use super::super::safetensors::Stored;
use super::in_f16;

/// Multiplies codes by scales, in f32, and rounds to f16.
pub(super) fn tensor(
    name: &str,
    block: [usize; 2],
    codes: Stored<'_>,
    scales: Stored<'_>,
) -> Result<Tensor<'static>, String> {
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
    let table = table();
    let across = width.div_ceil(by_columns);
    let value = |at: usize| {
        let (row, column) = (at / width, at % width);
        table[usize::from(codes.data[at])] * values[row / by_rows * across + column / by_columns]
    };
    Ok(in_f16(name, [rows, width], (0..rows * width).map(value)))
}

/// Values of the codes: a sign, four bits of exponent over 7, three of mantissa; no infinities, and NaN for all ones.
fn table() -> [f32; 256] {
    std::array::from_fn(|code| {
        let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
        let magnitude = match (exponent, code & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa * f32::powi(2.0, -9),
            _ => (8.0 + mantissa) * f32::powi(2.0, i32::try_from(exponent).expect("four bits") - 10),
        };
        if code < 128 { magnitude } else { -magnitude }
    })
}
