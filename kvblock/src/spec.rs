//! Cache of one layer: bytes per block, and the tokens that stay reachable.

use derive_setters::Setters;
use strum::{Display, EnumString, IntoStaticStr, VariantNames};

use crate::id::BlockSize;
use crate::unknown_name::UnknownName;

/// Element type of a cache. A bfloat16 element takes as many bytes as an f16 element.
///
/// As text it is `f32`, `f16`, `fp8` or `int8`.
///
/// Exhaustive: kernels choose their text by it, and one that does not know a type must not compile. A new type is a breaking
/// change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Display, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum KvDtype {
    /// 32-bit float.
    #[cfg_attr(feature = "serde", serde(alias = "f32"))]
    F32,
    /// 16-bit float.
    #[cfg_attr(feature = "serde", serde(alias = "f16"))]
    F16,
    /// Float of 8 bits, e4m3.
    #[cfg_attr(feature = "serde", serde(alias = "fp8"))]
    Fp8,
    /// Integers of 8 bits with scales.
    #[cfg_attr(feature = "serde", serde(alias = "int8"))]
    Int8,
}

impl KvDtype {
    /// Whether elements are codes of 8 bits.
    #[must_use]
    pub const fn is_code(self) -> bool {
        matches!(self, Self::Fp8 | Self::Int8)
    }

    /// The name in commands, reports and variants of kernels.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Fp8 | Self::Int8 => 1,
        }
    }
}

/// Keys that a query may attend to: all up to its own position, or those of a sliding window or chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reach {
    /// All keys up to the query itself.
    #[default]
    Full,
    /// Sliding window of this many tokens, including the query itself: `i - j < window`.
    Window(u32),
    /// Chunk: the tokens of the query's own chunk of this many positions, `i / chunk == j / chunk` (Llama 4).
    Chunk(u32),
}

impl Reach {
    /// Position of the first key that the query at `position` reaches.
    #[must_use]
    pub const fn first_key(self, position: u32) -> u32 {
        match self {
            Self::Full => 0,
            Self::Window(window) => position.saturating_add(1).saturating_sub(window),
            Self::Chunk(chunk) => position / chunk * chunk,
        }
    }

    /// Number of tokens of the window or chunk; 0 for full attention.
    #[must_use]
    pub const fn tokens(self) -> u32 {
        match self {
            Self::Full => 0,
            Self::Window(tokens) | Self::Chunk(tokens) => tokens,
        }
    }
}

/// Keys that a layer's queries attend to. The kind decides which blocks of a sequence may be freed before the
/// sequence ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AttentionKind {
    /// All keys up to the query. `window` and `chunk` are set when a layer with limited reach is stored like full
    /// attention: the kernel masks by them, but no block is freed early.
    Full {
        /// Sliding window that the kernel is built for, in tokens.
        window: Option<u32>,
        /// Chunk that the kernel is built for, in tokens.
        chunk: Option<u32>,
    },
    /// The last `window` tokens, the query's own included.
    SlidingWindow {
        /// Length of the window in tokens.
        window: u32,
    },
    /// Tokens since the last multiple of `chunk` (Llama 4).
    ChunkedLocal {
        /// Length of a chunk in tokens.
        chunk: u32,
    },
}

impl AttentionKind {
    /// Full attention without a mask of its own.
    pub const FULL: Self = Self::Full { window: None, chunk: None };

    /// Number of leading tokens that no query at position `computed` or later can reach.
    #[must_use]
    pub const fn num_skipped_tokens(self, computed: u32) -> u32 {
        let kept = match self {
            Self::Full { .. } => Reach::Full,
            Self::SlidingWindow { window } => Reach::Window(window),
            Self::ChunkedLocal { chunk } => Reach::Chunk(chunk),
        };
        kept.first_key(computed)
    }

    /// Whether every token stays reachable.
    #[must_use]
    pub const fn is_full(self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

impl From<Reach> for AttentionKind {
    /// Converts a reach to the kind by which blocks are freed once no query reaches them.
    fn from(reach: Reach) -> Self {
        match reach {
            Reach::Full => Self::FULL,
            Reach::Window(window) => Self::SlidingWindow { window },
            Reach::Chunk(chunk) => Self::ChunkedLocal { chunk },
        }
    }
}

/// Composition of the bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum PageLayout {
    /// A key and a value for each token and head.
    KeyValue {
        /// Number of KV heads.
        num_kv_heads: u32,
        /// Number of elements of a key.
        key_dim: u32,
        /// Number of elements of a value.
        value_dim: u32,
        /// Element type.
        dtype: KvDtype,
        /// One f32 scale for each token and head, of keys and of values.
        per_token_head_scales: bool,
    },
    /// One latent vector for each `compress_ratio` tokens (MLA, compressors, indexers): no factor 2.
    Latent {
        /// Bytes of one stored vector, scales and rotary part included.
        bytes_per_entry: u32,
        /// Element type; layers of different types cannot share a group.
        dtype: KvDtype,
        /// Number of tokens per stored vector; divides the block size.
        compress_ratio: u32,
    },
}

/// The cache of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct KvCacheSpec {
    /// Reach of the layer's queries.
    pub kind: AttentionKind,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Composition of the bytes of a block, before alignment.
    #[setters(skip)]
    pub layout: PageLayout,
    /// A page is rounded up to a multiple of this many bytes; 1 for none.
    pub page_align_bytes: u32,
    /// Bytes of a page if it is padded to more than its real size, so that layers of different sizes share a pool.
    #[setters(strip_option)]
    pub padded_page_bytes: Option<u64>,
}

/// The lengths that bound how much of a cache one sequence can hold at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct LengthLimits {
    /// Maximum length of a sequence in tokens, prompt and output together.
    pub max_model_len: u32,
    /// Maximum number of tokens that one step computes.
    pub max_batched_tokens: u32,
}

impl LengthLimits {
    /// Limits of sequences of up to `max_model_len` tokens, each of which one step may compute whole.
    #[must_use]
    pub const fn new(max_model_len: u32) -> Self {
        Self { max_model_len, max_batched_tokens: max_model_len }
    }
}

impl KvCacheSpec {
    /// A spec of keys and values of equal head size.
    #[must_use]
    pub const fn new(
        kind: AttentionKind,
        block_size: BlockSize,
        num_kv_heads: u32,
        head_dim: u32,
        dtype: KvDtype,
    ) -> Self {
        let layout = PageLayout::KeyValue {
            num_kv_heads,
            key_dim: head_dim,
            value_dim: head_dim,
            dtype,
            per_token_head_scales: false,
        };
        Self::of(kind, block_size, layout)
    }

    /// A spec of one latent of `bytes_per_entry` bytes for every `compress_ratio` tokens: for example 576 elements
    /// per token for MLA, or the 656 bytes of DeepSeek V3.2's fp8 layout (512 fp8 values, 4 f32 scales, 64 bf16
    /// rotary values).
    #[must_use]
    pub const fn latent(
        kind: AttentionKind,
        block_size: BlockSize,
        bytes_per_entry: u32,
        dtype: KvDtype,
        compress_ratio: u32,
    ) -> Self {
        Self::of(kind, block_size, PageLayout::Latent { bytes_per_entry, dtype, compress_ratio })
    }

    /// A spec of blocks of any layout, without alignment and padding.
    #[must_use]
    pub const fn of(kind: AttentionKind, block_size: BlockSize, layout: PageLayout) -> Self {
        Self { kind, block_size, layout, page_align_bytes: 1, padded_page_bytes: None }
    }

    /// Whether blocks hold latents.
    #[must_use]
    pub const fn is_latent(&self) -> bool {
        matches!(self.layout, PageLayout::Latent { .. })
    }

    /// Bytes of one block of this layer without alignment and padding.
    ///
    /// # Panics
    /// When the compress ratio of a latent is 0.
    #[must_use]
    pub const fn unpadded_page_bytes(&self) -> u64 {
        let tokens = self.block_size.get() as u64;
        match self.layout {
            PageLayout::KeyValue { num_kv_heads, key_dim, value_dim, dtype, per_token_head_scales } => {
                let elements = (key_dim as u64 + value_dim as u64) * dtype.bytes() as u64;
                let scales = if per_token_head_scales { 2 * 4 } else { 0 };
                tokens * num_kv_heads as u64 * (elements + scales)
            }
            PageLayout::Latent { bytes_per_entry, compress_ratio, .. } => {
                tokens / compress_ratio as u64 * bytes_per_entry as u64
            }
        }
    }

    /// Bytes of one block of this layer.
    ///
    /// # Panics
    /// When the padded size is smaller than the real one.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        let aligned = self.unpadded_page_bytes().next_multiple_of(u64::from(self.page_align_bytes));
        let padded = self.padded_page_bytes.unwrap_or(aligned);
        assert!(padded >= aligned, "page padded to {padded} bytes holds {aligned}");
        padded
    }

    /// Maximum number of blocks that one sequence holds at a time.
    ///
    /// A sliding window needs one block more than its tokens fill, since it may start inside a block; so does
    /// a chunk that is not a multiple of the block size.
    #[must_use]
    pub fn max_blocks_per_seq(&self, limits: LengthLimits) -> u32 {
        self.admission_cap(limits).unwrap_or_else(|| self.block_size.blocks_for(limits.max_model_len))
    }

    /// Limit on the blocks of one sequence in the admission check "does the whole request fit", so that a long prompt
    /// is not refused for blocks that it will have freed by then: [`max_blocks_per_seq`](Self::max_blocks_per_seq),
    /// or `None` for full attention.
    #[must_use]
    pub fn admission_cap(&self, limits: LengthLimits) -> Option<u32> {
        let LengthLimits { max_model_len, max_batched_tokens } = limits;
        let reach = |tokens: u32| tokens.saturating_add(max_batched_tokens).min(max_model_len);
        match self.kind {
            AttentionKind::Full { .. } => None,
            AttentionKind::SlidingWindow { window } => {
                Some(self.block_size.blocks_for(reach(window.saturating_sub(1))) + 1)
            }
            AttentionKind::ChunkedLocal { chunk } => {
                let starts_inside_a_block = !chunk.is_multiple_of(self.block_size.get());
                Some(self.block_size.blocks_for(reach(chunk)) + u32::from(starts_inside_a_block))
            }
        }
    }

    /// Maximum number of bytes of this layer that one sequence holds at a time.
    #[must_use]
    pub fn max_memory_bytes(&self, limits: LengthLimits) -> u64 {
        u64::from(self.max_blocks_per_seq(limits)) * self.page_bytes()
    }
}
