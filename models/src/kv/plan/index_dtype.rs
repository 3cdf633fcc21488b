//! Formats of the keys of an indexer.

use attn_kernels::kernel::index_logits::IndexKeys;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use kvblock::UnknownName;
use strum::{Display, EnumString, VariantNames};

/// Format of the keys of an indexer in their cache, and of its queries; as text `f32`, `f16` or `fp8`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
pub enum IndexDtype {
    /// f32.
    F32,
    /// f16.
    F16,
    /// Fp8 codes (e4m3), as DeepSeek publishes: keys and queries are rotated by Hadamard's matrix over the square root of their
    /// length and rounded, each with a scale that is a power of two. A key of 128 dimensions takes 132 bytes.
    Fp8,
}

impl IndexDtype {
    /// Returns the default for a cache of `kv`: the same type, except f16 for int8.
    #[must_use]
    pub const fn beside(kv: KvDtype) -> Self {
        match kv {
            KvDtype::F32 => Self::F32,
            KvDtype::F16 | KvDtype::Int8 => Self::F16,
            KvDtype::Fp8 => Self::Fp8,
        }
    }

    /// Returns the bytes of a key of `head_dim` dimensions, including its scale.
    #[must_use]
    pub const fn key_bytes(self, head_dim: u32) -> u32 {
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 => 2 * head_dim,
            Self::Fp8 => head_dim + 4,
        }
    }

    /// Returns the shape of keys in blocks of `block_size`.
    pub(crate) fn keys(self, head_dim: u32, block_size: u32) -> IndexKeys {
        let cached = |dtype| {
            IndexKeys::Cached(KvShape {
                num_kv_heads: 1,
                head_dim,
                block_size,
                dtype,
                layout: KvLayout::Native,
            })
        };
        match self {
            Self::F32 => cached(KvDtype::F32),
            Self::F16 => cached(KvDtype::F16),
            Self::Fp8 => IndexKeys::Fp8 { head_dim, page: block_size },
        }
    }
}
