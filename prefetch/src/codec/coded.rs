//! Codecs of shards, and the tier that applies one.

mod fp8;
mod int8;

use std::fmt;
use std::sync::Arc;

use half::f16;
use kvblock::BlockHash;

use super::RowLayout;
use crate::tier::{BlockLayout, Stored, Tier, TierError, TierName};

/// Number of elements of f16 in the innermost 16 bytes of a paged K block.
const PACK: usize = 8;

impl RowLayout {
    fn head_dim(self) -> usize {
        match self {
            Self::Contiguous { head_dim }
            | Self::PagedKey { head_dim, .. }
            | Self::PagedKeyValue { head_dim, .. } => head_dim as usize,
        }
    }

    /// Number of elements that must not be divided: a row, a K block of one head, or a block of K and V.
    fn unit(self) -> usize {
        match self {
            Self::Contiguous { head_dim } => head_dim as usize,
            Self::PagedKey { head_dim, block_size } => head_dim as usize * block_size as usize,
            Self::PagedKeyValue { head_dim, block_size, num_kv_heads } => {
                2 * num_kv_heads as usize * head_dim as usize * block_size as usize
            }
        }
    }

    /// Position in the shard of element `d` of row `row`.
    fn position(self, row: usize, d: usize) -> usize {
        match self {
            Self::Contiguous { head_dim } => row * head_dim as usize + d,
            Self::PagedKey { head_dim, block_size } => {
                let (head_dim, block_size) = (head_dim as usize, block_size as usize);
                let (head, token) = (row / block_size, row % block_size);
                head * head_dim * block_size + (d / PACK * block_size + token) * PACK + d % PACK
            }
            Self::PagedKeyValue { head_dim, block_size, num_kv_heads } => {
                let key_rows = num_kv_heads as usize * block_size as usize;
                let (both, row) = (row / (2 * key_rows), row % (2 * key_rows));
                let rows = match row < key_rows {
                    true => Self::PagedKey { head_dim, block_size },
                    false => Self::Contiguous { head_dim },
                };
                both * 2 * key_rows * head_dim as usize + rows.position(row, d)
            }
        }
    }
}

/// Encoding of the elements of a shard.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Codec {
    /// No encoding: exact for every cache type, including quantised ones.
    AsStored,
    /// f16 to fp8 e4m3: `saturate(x / scale)`, read as `value * scale`. Half the bytes.
    Fp8 {
        /// Scale of the whole tensor, usually 1.
        scale: f32,
    },
    /// f16 to int8 with an f32 scale per token and head, `max(absmax / 127, 1e-6)`. Half the bytes, plus 4
    /// per row.
    Int8 {
        /// Position of the rows in a shard.
        rows: RowLayout,
    },
}

/// Why a codec does not fit a layout.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum CodecError {
    /// The shard does not consist of whole f16 elements or rows.
    #[error("shard of {shard_bytes} bytes is not a whole number of units of {unit_bytes} bytes")]
    Uneven {
        /// Bytes of a shard.
        shard_bytes: usize,
        /// Bytes of one unit.
        unit_bytes: usize,
    },
    /// The head dimension is 0, or not a multiple of the number of elements that the codec packs together.
    #[error("head dimension {head_dim} is not a positive multiple of {multiple}")]
    HeadDim {
        /// Number of elements of a row.
        head_dim: u32,
        /// Divisor that the head dimension must have.
        multiple: u32,
    },
    /// A scale must be positive and finite.
    #[error("scale {scale} is not positive and finite")]
    Scale {
        /// The scale.
        scale: f32,
    },
}

impl Codec {
    /// The layout of blocks after encoding, given their layout before.
    ///
    /// # Errors
    /// [`CodecError`] when the shards do not divide into rows, or the scale is invalid.
    pub fn encoded_layout(self, layout: BlockLayout) -> Result<BlockLayout, CodecError> {
        let shard_bytes = layout.shard_bytes();
        let whole = |unit: usize| match shard_bytes % (unit * 2) {
            0 => Ok(shard_bytes / 2),
            _ => Err(CodecError::Uneven { shard_bytes, unit_bytes: unit * 2 }),
        };
        let encoded = match self {
            Self::AsStored => return Ok(layout),
            Self::Fp8 { scale } if !(scale > 0.0 && scale.is_finite()) => {
                return Err(CodecError::Scale { scale });
            }
            Self::Fp8 { .. } => whole(1)?,
            Self::Int8 { rows } => {
                let multiple = if matches!(rows, RowLayout::Contiguous { .. }) { 1 } else { 8 };
                let head_dim = u32::try_from(rows.head_dim()).expect("it comes from a u32");
                if head_dim == 0 || head_dim % multiple != 0 || rows.unit() == 0 {
                    return Err(CodecError::HeadDim { head_dim, multiple });
                }
                let elements = whole(rows.unit())?;
                elements + elements / rows.head_dim() * size_of::<f32>()
            }
        };
        let encoded = u32::try_from(encoded).ok().and_then(|bytes| BlockLayout::new(layout.shards(), bytes));
        encoded.ok_or(CodecError::Uneven { shard_bytes, unit_bytes: shard_bytes })
    }

    /// Encodes a shard of f16 elements (little-endian).
    ///
    /// # Panics
    /// When the lengths do not match [`Self::encoded_layout`].
    pub fn encode(self, shard: &[u8], out: &mut [u8]) {
        match self {
            Self::AsStored => out.copy_from_slice(shard),
            Self::Fp8 { scale } => fp8::encode(shard, out, scale),
            Self::Int8 { rows } => int8::encode(shard, out, rows),
        }
    }

    /// Decodes a shard into f16 elements (little-endian).
    ///
    /// # Panics
    /// When the lengths do not match [`Self::encoded_layout`].
    pub fn decode(self, encoded: &[u8], out: &mut [u8]) {
        match self {
            Self::AsStored => out.copy_from_slice(encoded),
            Self::Fp8 { scale } => fp8::decode(encoded, out, scale),
            Self::Int8 { rows } => int8::decode(encoded, out, rows),
        }
    }
}

fn element(shard: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([shard[at * 2], shard[at * 2 + 1]]).to_f32()
}

/// Writes an element as f16. Saturates: a value that f16 cannot hold would come back as infinity and poison the softmax.
fn set_element(shard: &mut [u8], at: usize, value: f32) {
    let value = value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
    shard[at * 2..at * 2 + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// A tier whose blocks are encoded: callers see f16 blocks, and the tier below holds the smaller encoded ones.
pub struct CodedTier {
    codec: Codec,
    layout: BlockLayout,
    inner: Arc<dyn Tier>,
}

impl fmt::Debug for CodedTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodedTier")
            .field("codec", &self.codec)
            .field("layout", &self.layout)
            .field("inner", &self.inner.name())
            .finish_non_exhaustive()
    }
}

impl CodedTier {
    /// Puts `codec` in front of `inner`, for callers with blocks of `layout`.
    ///
    /// # Errors
    /// [`CodecError`] when the codec does not fit `layout`.
    ///
    /// # Panics
    /// When `inner` was not built for [`Codec::encoded_layout`].
    pub fn new(codec: Codec, layout: BlockLayout, inner: Arc<dyn Tier>) -> Result<Self, CodecError> {
        let encoded = codec.encoded_layout(layout)?;
        assert_eq!(inner.layout(), encoded, "the tier below holds blocks of another size");
        Ok(Self { codec, layout, inner })
    }
}

impl Tier for CodedTier {
    fn name(&self) -> TierName {
        self.inner.name()
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    fn capacity_blocks(&self) -> Option<u64> {
        self.inner.capacity_blocks()
    }

    fn probe(&self) -> Result<(), TierError> {
        self.inner.probe()
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        self.inner.contains(key)
    }

    fn contains_many(&self, keys: &[BlockHash]) -> Result<Vec<bool>, TierError> {
        self.inner.contains_many(keys)
    }

    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_shard(shard, into.len())?;
        let mut encoded = vec![0; self.inner.layout().shard_bytes()];
        self.inner.read(key, shard, &mut encoded)?;
        self.codec.decode(&encoded, into);
        Ok(())
    }

    fn read_block(&self, key: BlockHash, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_block(into.len())?;
        let mut encoded = vec![0; self.inner.layout().block_bytes()];
        self.inner.read_block(key, &mut encoded)?;
        let shards = encoded.chunks_exact(self.inner.layout().shard_bytes());
        for (encoded, shard) in shards.zip(into.chunks_exact_mut(self.layout.shard_bytes())) {
            self.codec.decode(encoded, shard);
        }
        Ok(())
    }

    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError> {
        self.layout.check_block(block.len())?;
        let mut encoded = vec![0; self.inner.layout().block_bytes()];
        let shards = encoded.chunks_exact_mut(self.inner.layout().shard_bytes());
        for (encoded, shard) in shards.zip(block.chunks_exact(self.layout.shard_bytes())) {
            self.codec.encode(shard, encoded);
        }
        self.inner.write(key, &encoded)
    }

    fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        self.inner.remove(key)
    }

    fn flush(&self) -> Result<(), TierError> {
        self.inner.flush()
    }
}
