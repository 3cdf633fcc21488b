//! Matrices of integers with scales for groups of inputs, and zero points.

use std::borrow::Cow;

use half::f16;
use safetensors::Dtype as StDtype;

use super::super::Stored;
use super::config::Gptq;
use super::in_f16;
use crate::weights::{Dtype, Tensor};

/// Number of elements of a block of `Q4_0`, `Q5_0` and `Q8_0`.
const BLOCK: usize = 32;

/// Neighbouring outputs that are repacked together: their words share a cache line in layouts by input.
const TILE: usize = 16;

/// Columns of the eight codes of a word of AWQ, lowest bits first.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A matrix `[outputs, inputs]` of codes: an element is `(code - zero) * scale`, with zero and scale of its output and group.
pub(super) struct Ints<'a> {
    outputs: usize,
    inputs: usize,
    bits: u32,
    layout: Layout,
    codes: &'a [u8],
    /// Group of each input; `None` if the inputs of each group are consecutive.
    order: Option<Vec<usize>>,
    /// Number of inputs per group.
    group: usize,
    /// Scales, `[groups, outputs]`.
    scales: Vec<f32>,
    /// Zero points, `[groups, outputs]`.
    zeros: Vec<u16>,
}

/// Order of the codes of a quantized matrix, which are packed into words of 32 bits, or are bytes.
#[derive(Clone, Copy)]
enum Layout {
    /// Words of codes of neighbouring inputs, `[inputs / codes a word, outputs]` (GPTQ).
    Down,
    /// Words of codes of eight outputs in the order of AWQ, `[inputs, outputs / 8]`.
    Across,
    /// Words of codes of neighbouring inputs, `[outputs, inputs / codes a word]` (compressed-tensors).
    Along,
    /// Signed bytes, `[outputs, inputs]`.
    Bytes,
}

type Part<'a, 'f> = &'f dyn Fn(&str) -> Option<Stored<'a>>;

/// Reads a GPTQ matrix: codes and zero points are in words, scales and zero points are by group.
pub(super) fn gptq<'a>(gptq: Gptq, codes: Stored<'a>, part: Part<'a, '_>) -> Result<Ints<'a>, String> {
    let Gptq { bits, zero_offset } = gptq;
    let per_word = 32 / bits as usize;
    let [words, outputs] = words(&codes)?;
    let inputs = words * per_word;
    let (groups, scales) = by_group(part(".scales"), outputs)?;
    let zeros = need(part(".qzeros"), "qzeros")?;
    expect(&zeros, &[groups, outputs.div_ceil(per_word)])?;
    // One less is stored, and all bits wrap.
    let zero = |at: usize| {
        let (group, output) = (at / outputs, at % outputs);
        let word = word(zeros.data, group * outputs.div_ceil(per_word) + output / per_word);
        let code = bits_of(word, bits, output % per_word) + zero_offset;
        u16::try_from(code & ((1 << bits) - 1)).expect("at most 8 bits")
    };
    let zeros = (0..groups * outputs).map(zero).collect();
    let group = inputs.div_ceil(groups.max(1));
    let order = part(".g_idx").map(|order| order_of(&order, inputs, groups, group)).transpose()?.flatten();
    let (layout, codes) = (Layout::Down, codes.data);
    Ok(Ints { outputs, inputs, bits, layout, codes, order, group, scales, zeros })
}

/// Reads an AWQ matrix: codes are by input, eight outputs per word.
pub(super) fn awq<'a>(codes: Stored<'a>, part: Part<'a, '_>) -> Result<Ints<'a>, String> {
    let [inputs, words] = words(&codes)?;
    let outputs = 8 * words;
    let (groups, scales) = by_group(part(".scales"), outputs)?;
    let zeros = need(part(".qzeros"), "qzeros")?;
    expect(&zeros, &[groups, words])?;
    let zero = |at: usize| across(zeros.data, words, at / outputs, at % outputs);
    let zeros = (0..groups * outputs).map(zero).collect();
    let group = inputs.div_ceil(groups.max(1));
    let (layout, codes) = (Layout::Across, codes.data);
    Ok(Ints { outputs, inputs, bits: 4, layout, codes, order: None, group, scales, zeros })
}

/// Reads a matrix of compressed-tensors: codes are by output and offset by half of their range, and the number of
/// inputs is stored too.
pub(super) fn compressed<'a>(bits: u32, codes: Stored<'a>, part: Part<'a, '_>) -> Result<Ints<'a>, String> {
    let per_word = 32 / bits as usize;
    let [outputs, words] = words(&codes)?;
    let shape = need(part(".weight_shape"), "weight_shape")?.to_i64().unwrap_or_default();
    let inputs = match shape[..] {
        [rows, inputs] if usize::try_from(rows) == Ok(outputs) => usize::try_from(inputs).unwrap_or(0),
        _ => return Err(format!("weight_shape {shape:?} is not of {outputs} rows")),
    };
    if inputs.div_ceil(per_word) != words {
        return Err(format!("{words} words a row do not hold {inputs} codes of {bits} bits"));
    }
    let (groups, scales) = by_output(&need(part(".weight_scale"), "weight_scale")?, outputs)?;
    let half = 1 << (bits - 1);
    let zeros = match part(".weight_zero_point") {
        None => vec![half; groups * outputs],
        Some(zeros) => {
            expect(&zeros, &[outputs.div_ceil(per_word), groups])?;
            let zero = |at: usize| {
                let (group, output) = (at / outputs, at % outputs);
                let word = word(zeros.data, output / per_word * groups + group);
                u16::try_from(bits_of(word, bits, output % per_word)).expect("at most 8 bits")
            };
            (0..groups * outputs).map(zero).collect()
        }
    };
    let group = inputs.div_ceil(groups.max(1));
    let order = part(".weight_g_idx").map(|order| order_of(&order, inputs, groups, group));
    let order = order.transpose()?.flatten();
    let (layout, codes) = (Layout::Along, codes.data);
    Ok(Ints { outputs, inputs, bits, layout, codes, order, group, scales, zeros })
}

/// Reads a matrix of signed bytes with a scale per output, per group, or for all.
pub(super) fn int8<'a>(codes: Stored<'a>, scales: Stored<'a>) -> Result<Ints<'a>, String> {
    let &[outputs, inputs] = codes.shape else { return Err(format!("shape {:?} is no matrix", codes.shape)) };
    let (groups, scales) = by_output(&scales, outputs)?;
    let (group, zeros) = (inputs.div_ceil(groups.max(1)), vec![128; groups * outputs]);
    let (layout, codes) = (Layout::Bytes, codes.data);
    Ok(Ints { outputs, inputs, bits: 8, layout, codes, order: None, group, scales, zeros })
}

impl Ints<'_> {
    /// Returns the matrix as one tensor: of the smallest block type that holds the same numbers, or rounded to f16 if
    /// there is none.
    pub(super) fn tensor(&self, name: &str) -> Tensor<'static> {
        let Some(dtype) = self.exact() else {
            let value = |at: usize| self.value(at / self.inputs, at % self.inputs);
            let values = (0..self.outputs * self.inputs).map(value);
            return in_f16(name, [self.outputs, self.inputs], values);
        };
        let shape = vec![self.outputs, self.inputs];
        Tensor { name: Cow::Owned(name.to_owned()), dtype, shape, data: self.blocks(dtype).into() }
    }

    /// Returns the block type that holds the same numbers; `None` if there is none.
    fn exact(&self) -> Option<Dtype> {
        let whole =
            self.order.is_none() && self.group.is_multiple_of(BLOCK) && self.inputs.is_multiple_of(BLOCK);
        let is_f16 = |scale: &f32| f16::from_f32(*scale).to_f32().to_bits() == scale.to_bits();
        if !(whole && self.scales.iter().all(is_f16)) {
            return None;
        }
        let half = 1 << (self.bits - 1);
        match (self.bits, self.zeros.iter().all(|zero| *zero == half)) {
            (4, true) => Some(Dtype::Q4_0),
            (4, false) => Some(Dtype::Q5_0),
            (8, true) => Some(Dtype::Q8_0),
            _ => None,
        }
    }

    fn blocks(&self, dtype: Dtype) -> Vec<u8> {
        let (size, a_row) = (dtype.block_bytes(), self.inputs / BLOCK);
        let mut out = vec![0; self.outputs * a_row * size];
        for first in (0..self.outputs).step_by(TILE) {
            for block in 0..a_row {
                for output in first..self.outputs.min(first + TILE) {
                    let to = &mut out[(output * a_row + block) * size..][..size];
                    self.block(dtype, output, block, to);
                }
            }
        }
        out
    }

    fn block(&self, dtype: Dtype, output: usize, block: usize, to: &mut [u8]) {
        let group = block * BLOCK / self.group * self.outputs + output;
        let codes: [u16; BLOCK] = std::array::from_fn(|i| self.code(output, block * BLOCK + i));
        let (scale, rest) = to.split_at_mut(2);
        scale.copy_from_slice(&f16::from_f32(self.scales[group]).to_le_bytes());
        let low = |code: u16| u8::try_from(code & 0xff).expect("eight bits");
        match dtype {
            Dtype::Q4_0 => nibbles(&codes.map(low), rest),
            Dtype::Q5_0 => {
                // 16 is zero there.
                let codes = codes.map(|code| low(code + 16 - self.zeros[group]));
                let fifth = (0..BLOCK).fold(0_u32, |bits, i| bits | u32::from(codes[i] >> 4 & 1) << i);
                rest[..4].copy_from_slice(&fifth.to_le_bytes());
                nibbles(&codes.map(|code| code & 15), &mut rest[4..]);
            }
            // From a code over 128 to one of two's complement.
            _ => rest.iter_mut().zip(codes).for_each(|(to, code)| *to = low(code) ^ 128),
        }
    }

    fn value(&self, output: usize, input: usize) -> f32 {
        let group = self.order.as_ref().map_or(input / self.group, |order| order[input]);
        let at = group * self.outputs + output;
        (f32::from(self.code(output, input)) - f32::from(self.zeros[at])) * self.scales[at]
    }

    /// Returns the code of an element as an unsigned number.
    fn code(&self, output: usize, input: usize) -> u16 {
        let per_word = 32 / self.bits as usize;
        let of = |at: usize, place: usize| {
            u16::try_from(bits_of(word(self.codes, at), self.bits, place)).expect("at most 8 bits")
        };
        match self.layout {
            Layout::Down => of(input / per_word * self.outputs + output, input % per_word),
            Layout::Across => across(self.codes, self.outputs / 8, input, output),
            Layout::Along => of(output * self.inputs.div_ceil(per_word) + input / per_word, input % per_word),
            Layout::Bytes => u16::from(self.codes[output * self.inputs + input] ^ 128),
        }
    }
}

/// Writes two codes per byte: the first half of a block in the low bits, the second half in the high ones.
fn nibbles(codes: &[u8; BLOCK], to: &mut [u8]) {
    let (low, high) = codes.split_at(BLOCK / 2);
    to.iter_mut().zip(low.iter().zip(high)).for_each(|(to, (low, high))| *to = low | high << 4);
}

/// Returns the code at `row` and `column` of a matrix of words in the order of AWQ.
fn across(data: &[u8], words: usize, row: usize, column: usize) -> u16 {
    let place = AWQ_ORDER.iter().position(|of| *of == column % 8).expect("all eight are there");
    u16::try_from(bits_of(word(data, row * words + column / 8), 4, place)).expect("four bits")
}

fn word(data: &[u8], at: usize) -> u32 {
    let bytes = &data[4 * at..4 * at + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn bits_of(word: u32, bits: u32, place: usize) -> u32 {
    word >> (bits * u32::try_from(place).expect("at most eight codes a word")) & ((1 << bits) - 1)
}

fn need<'a>(part: Option<Stored<'a>>, name: &str) -> Result<Stored<'a>, String> {
    part.ok_or_else(|| format!("it has no {name}"))
}

/// Extents of a matrix of words.
fn words(stored: &Stored<'_>) -> Result<[usize; 2], String> {
    match (stored.dtype, stored.shape) {
        (StDtype::I32, &[rows, columns]) => Ok([rows, columns]),
        (dtype, shape) => Err(format!("codes are {dtype} {shape:?}, not a matrix of I32")),
    }
}

fn expect(stored: &Stored<'_>, shape: &[usize]) -> Result<(), String> {
    match stored.dtype == StDtype::I32 && stored.shape == shape {
        true => Ok(()),
        false => Err(format!("zero points are {} {:?}, not I32 {shape:?}", stored.dtype, stored.shape)),
    }
}

/// Reads scales `[groups, outputs]`, and returns the number of groups.
fn by_group(scales: Option<Stored<'_>>, outputs: usize) -> Result<(usize, Vec<f32>), String> {
    let scales = need(scales, "scales")?;
    let values = scales.to_f32().ok_or_else(|| format!("scales are stored as {}", scales.dtype))?;
    match *scales.shape {
        [groups, columns] if columns == outputs && groups > 0 => Ok((groups, values)),
        _ => Err(format!("scales {:?} are not of {outputs} outputs", scales.shape)),
    }
}

/// Reads scales `[outputs, groups]`, or one for all, and returns the number of groups.
fn by_output(scales: &Stored<'_>, outputs: usize) -> Result<(usize, Vec<f32>), String> {
    let values = scales.to_f32().ok_or_else(|| format!("scales are stored as {}", scales.dtype))?;
    match *scales.shape {
        [] | [1] => Ok((1, vec![values[0]; outputs])),
        [rows] if rows == outputs => Ok((1, values)),
        [rows, groups] if rows == outputs && groups > 0 => {
            let by_group = (0..groups * outputs).map(|at| values[at % outputs * groups + at / outputs]);
            Ok((groups, by_group.collect()))
        }
        _ => Err(format!("scales {:?} are not of {outputs} outputs", scales.shape)),
    }
}

/// Returns the group of each input; `None` if the inputs of each group are consecutive.
fn order_of(
    stored: &Stored<'_>,
    inputs: usize,
    groups: usize,
    group: usize,
) -> Result<Option<Vec<usize>>, String> {
    let order = stored.to_i64().ok_or_else(|| format!("groups of inputs are stored as {}", stored.dtype))?;
    let order: Option<Vec<usize>> =
        order.iter().map(|of| usize::try_from(*of).ok().filter(|of| *of < groups)).collect();
    let order = order.filter(|order| order.len() == inputs);
    let order = order.ok_or_else(|| format!("groups of inputs are not {inputs} numbers under {groups}"))?;
    let neighbours = order.iter().enumerate().all(|(input, of)| *of == input / group);
    Ok((!neighbours).then_some(order))
}
