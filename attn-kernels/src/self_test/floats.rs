//! Layouts of floats in buffers, as data, by which comparisons here and in other programs read the elements.

use half::{bf16, f16};
use serde::Serialize;
use sparse_select::dsa::fp8;

use crate::cpu::latent_write::SCALED;
use crate::kernel::mla_decode::LatentShape;
use crate::kernel::{KvDtype, KvShape};

/// Function that returns the index of an element of a cache, by its block, head, offset and dimension.
pub type Index = fn(&KvShape, usize, usize, usize, usize) -> usize;

/// Layout of floats in records of equal size, one after the other. The elements of a record are in the order of their
/// values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FloatLayout {
    /// Size of a record, in bytes.
    pub bytes: usize,
    /// Elements of a record.
    pub elements: Vec<Element>,
}

/// One float of a record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Element {
    /// Place and format of the number.
    pub number: Stored,
    /// Place and format of the number's scale factor, if it has one.
    pub scale: Option<Stored>,
}

/// Format of a number, and its place in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Stored {
    /// Format of the number.
    pub format: Format,
    /// Offset of the number from the start of the record, in bytes.
    pub at: usize,
}

/// Format of a number, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// IEEE 754 in 32 bits.
    F32,
    /// IEEE 754 in 16 bits.
    F16,
    /// bf16: the upper half of an f32.
    Bf16,
    /// fp8: e4m3 without infinities.
    Fp8,
    /// Signed byte.
    Int8,
    /// Power of two, stored as the exponent of an f32.
    Exponent,
}

impl FloatLayout {
    /// Returns the layout of numbers of one format without scales.
    fn plain(format: Format, bytes: usize) -> Self {
        Self { bytes, elements: vec![Element { number: Stored { format, at: 0 }, scale: None }] }
    }

    /// Returns the layout of elements of a cache's type without scales.
    ///
    /// # Panics
    /// For int8, which has scales.
    #[must_use]
    pub fn of(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => Self::plain(Format::F32, 4),
            KvDtype::F16 => Self::plain(Format::F16, 2),
            KvDtype::Fp8 => Self::plain(Format::Fp8, 1),
            KvDtype::Int8 => panic!("int8 has scales: see FloatLayout::cache"),
        }
    }

    /// Returns the layout of signed bytes without scales.
    #[must_use]
    pub fn codes() -> Self {
        Self::plain(Format::Int8, 1)
    }

    /// Returns the layout of a cache whose elements are at `index`. A record is the part of a block that belongs to
    /// one KV head.
    #[must_use]
    pub fn cache(shape: &KvShape, index: Index) -> Self {
        if shape.dtype != KvDtype::Int8 {
            return Self::of(shape.dtype);
        }
        let (tokens, dims) = (shape.block_size as usize, shape.head_dim as usize);
        let codes = tokens * dims;
        let mut scales = vec![0; codes];
        for (offset, dim) in (0..tokens).flat_map(|offset| (0..dims).map(move |dim| (offset, dim))) {
            scales[index(shape, 0, 0, offset, dim)] = codes + 4 * offset;
        }
        let element = |(at, scale)| Element {
            number: Stored { format: Format::Int8, at },
            scale: Some(Stored { format: Format::F32, at: scale }),
        };
        Self { bytes: codes + 4 * tokens, elements: scales.into_iter().enumerate().map(element).collect() }
    }

    /// Returns the layout of latents. A record is a token.
    #[must_use]
    pub fn latents(shape: &LatentShape) -> Self {
        let (width, latent, plain) = (shape.width() as usize, shape.latent as usize, shape.plain as usize);
        let code = match shape.dtype {
            KvDtype::F32 | KvDtype::F16 => return Self::of(shape.dtype),
            KvDtype::Fp8 => Format::Fp8,
            KvDtype::Int8 => Format::Int8,
        };
        let stored = |format, at| Stored { format, at };
        let element = |dim| match dim {
            _ if plain == 0 => Element {
                number: stored(code, dim),
                scale: Some(stored(Format::F32, width + if dim < latent { 0 } else { 4 })),
            },
            // Codes, elements in bf16, and the exponents of scales.
            _ if dim < latent - plain => Element {
                number: stored(code, dim),
                scale: Some(stored(Format::Exponent, latent + plain + dim / SCALED)),
            },
            _ => Element { number: stored(Format::Bf16, 2 * dim + plain - latent), scale: None },
        };
        Self { bytes: shape.token_bytes(), elements: (0..width).map(element).collect() }
    }

    /// Decodes the values in `words`.
    #[must_use]
    pub fn values(&self, words: &[u32]) -> Vec<f32> {
        let records = bytemuck::cast_slice::<u32, u8>(words).chunks_exact(self.bytes);
        let value = |record: &[u8], element: &Element| {
            let scale = element.scale.map_or(1.0, |scale| scale.read(record));
            element.number.read(record) * scale
        };
        records.flat_map(|record| self.elements.iter().map(move |element| value(record, element))).collect()
    }
}

impl Stored {
    fn read(self, record: &[u8]) -> f32 {
        let bytes = &record[self.at..];
        match self.format {
            Format::F32 => bytemuck::pod_read_unaligned(&bytes[..4]),
            Format::F16 => bytemuck::pod_read_unaligned::<f16>(&bytes[..2]).to_f32(),
            Format::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Format::Fp8 => fp8::decode(bytes[0]),
            Format::Int8 => f32::from(bytes[0].cast_signed()),
            Format::Exponent => f32::from_bits(u32::from(bytes[0]) << 23),
        }
    }
}
