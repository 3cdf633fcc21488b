//! Element types of stored tensors.

use strum::{Display, IntoStaticStr};

/// Storage types of the elements of a [`Tensor`](crate::Tensor).
///
/// A quantised type packs a fixed number of consecutive elements of a row into one block; the layouts are those of
/// ggml (`ggml-common.h`). All multi-byte numbers are little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, IntoStaticStr)]
#[expect(non_camel_case_types, reason = "the names of ggml, which every tool and file name uses")]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// 32 elements: f16 `d`, 16 bytes of nibbles; `x = d * (q - 8)`.
    Q4_0,
    /// 32 elements: f16 `d`, f16 `m`, 16 bytes of nibbles; `x = d * q + m`.
    Q4_1,
    /// 32 elements: f16 `d`, fifth bits in 4 bytes, 16 bytes of nibbles; `x = d * (q - 16)`.
    Q5_0,
    /// 32 elements: f16 `d`, f16 `m`, fifth bits in 4 bytes, 16 bytes of nibbles; `x = d * q + m`.
    Q5_1,
    /// 32 elements: f16 `d`, 32 signed bytes; `x = d * q`.
    Q8_0,
    /// 256 elements: 16 pairs of nibbles, scale and minimum of 16 elements each, 64 bytes of bit pairs, f16 `d`, f16 `dmin`.
    Q2_K,
    /// 256 elements: 32 bytes of high bits, 64 bytes of low bit pairs, 16 six-bit scales in 12 bytes, f16 `d`.
    Q3_K,
    /// 256 elements: f16 `d`, f16 `dmin`, 8 six-bit scales and minima in 12 bytes, 128 bytes of nibbles.
    Q4_K,
    /// 256 elements: the layout of `Q4_K` with the fifth bit of each element in 32 more bytes.
    Q5_K,
    /// 256 elements: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 `d`.
    Q6_K,
    /// 32 elements: f16 `d`, 16 bytes of nibbles, which are places in a table of sixteen numbers.
    IQ4_NL,
    /// 256 elements: f16 `d`, 8 six-bit scales in 6 bytes, 128 bytes of nibbles as in `IQ4_NL`.
    IQ4_XS,
    /// 32 elements: e8m0 scale, 16 bytes of e2m1 nibbles (OCP microscaling format).
    MXFP4,
    /// 128 elements: f32 `d`, 128 codes with four exponent and three mantissa bits; `x = d * code`. No file has such blocks: they
    /// are made from published fp8 codes and their scales.
    F8_E4M3,
    /// 256 elements: f16 `d`, 32 bytes of places in a codebook of 8 ternary coordinates, 8 words of high bits and scales.
    IQ1_S,
    /// 256 elements: 32 bytes of places in the codebook of `IQ1_S`, 16 bytes of high bits, 8 bytes of scales, whose
    /// tops are f16 `d`.
    IQ1_M,
    /// 256 elements: f16 `d`, 8 times four places in a codebook of 8 coordinates and a word of signs and scale.
    IQ2_XXS,
    /// 256 elements: f16 `d`, 32 words of place and signs, 16 four-bit scales.
    IQ2_XS,
    /// 256 elements: f16 `d`, 32 low bytes of places, 32 bytes of signs, 8 bytes of high bits, 16 four-bit scales.
    IQ2_S,
    /// 256 elements: f16 `d`, 64 places in a codebook of 4 coordinates, 8 words of signs and scale.
    IQ3_XXS,
    /// 256 elements: f16 `d`, 64 low bytes of places, 8 bytes of high bits, 32 bytes of signs, 8 four-bit scales.
    IQ3_S,
    /// 256 elements: 52 bytes of five or four ternary digits, f16 `d`.
    TQ1_0,
    /// 256 elements: 64 bytes of bit pairs, where 1 means zero, f16 `d`.
    TQ2_0,
    /// 256 elements: f32 `d`, 256 signed bytes, and their sums, which are not read here.
    Q8_K,
}

impl Dtype {
    /// Every type that kernels read, in declaration order.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::F8_E4M3,
    ];

    /// Types that exist in files only: [`loads_as`](Self::loads_as) is the type that they are converted to.
    pub const CONVERTED: [Self; 10] = [
        Self::IQ1_S,
        Self::IQ1_M,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::Q8_K,
    ];

    /// Returns the types that a tensor of a file may have by itself. F8_E4M3 is not among them, because its blocks
    /// are made from codes and scales.
    pub fn in_files() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|dtype| *dtype != Self::F8_E4M3).chain(Self::CONVERTED)
    }

    /// Returns the type that a tensor of this type is loaded as: itself or, if no kernel reads it, a type with the same numbers
    /// (ternary digits as `Q4_0`) or with rounded ones (f16).
    #[must_use]
    pub const fn loads_as(self) -> Self {
        match self {
            Self::TQ1_0 | Self::TQ2_0 => Self::Q4_0,
            Self::IQ1_S
            | Self::IQ1_M
            | Self::IQ2_XXS
            | Self::IQ2_XS
            | Self::IQ2_S
            | Self::IQ3_XXS
            | Self::IQ3_S
            | Self::Q8_K => Self::F16,
            _ => self,
        }
    }

    /// Number of elements in one block; 1 for the plain types.
    pub const fn block_elems(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::F8_E4M3 => 128,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
            Self::IQ1_S
            | Self::IQ1_M
            | Self::IQ2_XXS
            | Self::IQ2_XS
            | Self::IQ2_S
            | Self::IQ3_XXS
            | Self::IQ3_S
            | Self::TQ1_0
            | Self::TQ2_0
            | Self::Q8_K => 256,
        }
    }

    /// Number of bytes of one block; for plain types, the size of an element.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
            Self::F8_E4M3 => 132,
            Self::IQ1_S => 50,
            Self::IQ1_M => 56,
            Self::IQ2_XXS => 66,
            Self::IQ2_XS => 74,
            Self::IQ2_S => 82,
            Self::IQ3_XXS => 98,
            Self::IQ3_S => 110,
            Self::TQ1_0 => 54,
            Self::TQ2_0 => 66,
            Self::Q8_K => 292,
        }
    }

    /// Number of bytes of `elems` elements; `None` if the elements do not fill whole blocks or the size overflows.
    pub const fn bytes_for(self, elems: usize) -> Option<usize> {
        if !elems.is_multiple_of(self.block_elems()) {
            return None;
        }
        (elems / self.block_elems()).checked_mul(self.block_bytes())
    }

    /// The type's name as ggml and GGUF tools print it, or its name in safetensors files.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}
