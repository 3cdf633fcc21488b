//! Repacks matrices for the GPU, still quantised: blocks of 32 along k, with columns next to each other.
//!
//! A checkpoint stores a matrix row by row; neighbouring lanes of a kernel own neighbouring output columns, so here
//! the same block of neighbouring columns lies side by side and every load is coalesced. The modules
//! `weights_*.wgsl` say what the two planes of each type hold.

mod columns;

use crate::{Dtype, Tensor};
use attn_kernels::Variant;
use attn_kernels::declare::Listed;

/// Number of elements along k in a block.
pub const BLOCK: usize = 32;

/// Number of blocks in a super-block of the K types.
const SUPER: usize = 8;

/// A packed matrix, `[in_features, cols]`; each tensor fills a range of columns.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Coding of elements.
    pub format: Format,
    /// Number of output features.
    pub cols: usize,
    /// Number of blocks along k.
    pub blocks: usize,
    /// Quants in groups of four words: the binding `wq` of kernels.
    pub quants: Vec<[u32; 4]>,
    /// Scales: the binding `ws` of kernels.
    pub scales: Vec<u32>,
}

/// Defines the enum of codings with their names and shader modules.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident = $name:literal,)*) => {
        /// Codings of a packed matrix; types with one layout share a coding.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        impl Format {
            /// All codings.
            const ALL: &'static [Self] = &[$(Self::$format),*];

            /// Each coding with the shader module that reads it.
            pub(crate) const MODULES: &'static [(Self, &'static str)] =
                &[$((Self::$format, concat!("weights_", $name))),*];

            /// The coding's name in variants of kernels.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$format => $name,)*
                }
            }
        }
    };
}

formats! {
    /// `F32`
    F32 = "f32",
    /// `F16`
    F16 = "f16",
    /// `BF16`
    Bf16 = "bf16",
    /// `Q4_0` and `Q4_1`
    Q4 = "q4",
    /// `Q5_0` and `Q5_1`
    Q5 = "q5",
    /// `Q8_0`
    Q8 = "q8",
    /// `Q2_K`
    Q2K = "q2k",
    /// `Q3_K`
    Q3K = "q3k",
    /// `Q4_K`
    Q4K = "q4k",
    /// `Q5_K`
    Q5K = "q5k",
    /// `Q6_K`
    Q6K = "q6k",
    /// `IQ4_NL` and `IQ4_XS`
    Iq4 = "iq4",
    /// `MXFP4`
    Mxfp4 = "mxfp4",
    /// `F8_E4M3`
    Fp8 = "fp8",
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype.loads_as() {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
            Dtype::Q4_0 | Dtype::Q4_1 => Self::Q4,
            Dtype::Q5_0 | Dtype::Q5_1 => Self::Q5,
            Dtype::Q8_0 => Self::Q8,
            Dtype::Q2_K => Self::Q2K,
            Dtype::Q3_K => Self::Q3K,
            Dtype::Q4_K => Self::Q4K,
            Dtype::Q5_K => Self::Q5K,
            Dtype::Q6_K => Self::Q6K,
            Dtype::IQ4_NL | Dtype::IQ4_XS => Self::Iq4,
            Dtype::MXFP4 => Self::Mxfp4,
            Dtype::F8_E4M3 => Self::Fp8,
            other => unreachable!("{other} is loaded as another type"),
        }
    }
}

impl Format {
    /// Data and type by which messages tell users of weights in this coding.
    pub(crate) fn label(self) -> [&'static str; 2] {
        ["weights", self.name()]
    }

    /// The variant for each coding, by its name.
    pub(crate) fn listed(variant: impl Fn(Self) -> Variant) -> Listed {
        Self::ALL.iter().map(|format| (format.name().to_owned(), variant(*format))).collect()
    }

    /// The variant for each coding of integers, by its name.
    pub(crate) fn listed_codes(variant: impl Fn(Self) -> Variant) -> Listed {
        let codes = Self::ALL.iter().filter(|format| format.has_codes());
        codes.map(|format| (format.name().to_owned(), variant(*format))).collect()
    }

    /// Whether elements are integers of at most 8 bits with one offset per block, as integer dot products require.
    #[must_use]
    pub fn has_codes(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::Q2K | Self::Fp8)
    }

    /// Whether converting elements to integers takes longer than multiplying them: on an H200, such blocks take three
    /// times as long as others if they are in a cache.
    #[must_use]
    pub fn unpacks_slowly(self) -> bool {
        matches!(self, Self::Iq4 | Self::Mxfp4)
    }

    /// Returns the number of groups of four words of a column of `blocks` blocks in `wq`.
    #[must_use]
    pub fn quads(self, blocks: usize) -> usize {
        match self {
            Self::F32 => 8 * blocks,
            Self::F16 | Self::Bf16 => 4 * blocks,
            Self::Q8 | Self::Fp8 => 2 * blocks,
            Self::Q4 | Self::Q5 | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4 | Self::Mxfp4 => blocks,
            Self::Q2K | Self::Q3K => blocks / 2,
        }
    }

    /// Returns the number of words of a column of `blocks` blocks in `ws`.
    #[must_use]
    pub fn scale_words(self, blocks: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q4 | Self::Mxfp4 => blocks,
            Self::Q5 => 2 * blocks,
            Self::Q8 => blocks.div_ceil(2),
            Self::Fp8 => blocks / 4,
            Self::Iq4 => blocks.div_ceil(2) + blocks.div_ceil(SUPER),
            Self::Q2K | Self::Q4K => blocks / 2 + blocks / SUPER,
            Self::Q3K | Self::Q5K => blocks / 2 + blocks / SUPER + blocks,
            Self::Q6K => blocks / 2 + blocks / SUPER + 2 * blocks,
        }
    }

    /// Returns the number of bytes that a column of `blocks` blocks takes on the device.
    #[must_use]
    pub fn column_bytes(self, blocks: usize) -> usize {
        16 * self.quads(blocks) + 4 * self.scale_words(blocks)
    }
}

impl Packed {
    /// Creates an empty matrix for tensors of `dtype` with `in_features`: a multiple of the block size, or of 8 for plain types,
    /// whose last block is padded with zeros.
    #[must_use]
    pub fn new(dtype: Dtype, in_features: usize, cols: usize) -> Self {
        let blocks = in_features.div_ceil(BLOCK);
        let format = Format::from(dtype);
        let quants = vec![[0; 4]; format.quads(blocks) * cols];
        let scales = vec![0; format.scale_words(blocks) * cols];
        Self { format, cols, blocks, quants, scales }
    }

    /// Writes rows `rows` of `tensor` as columns, starting at `first`.
    ///
    /// # Panics
    /// When the tensor's width or type is another than the matrix was made for.
    pub fn fill(&mut self, tensor: &Tensor<'_>, rows: std::ops::Range<usize>, first: usize) {
        assert_eq!(Format::from(tensor.dtype), self.format, "type of {}", tensor.name);
        let width = *tensor.shape.last().expect("a matrix");
        assert_eq!(width.div_ceil(BLOCK), self.blocks, "blocks of {}", tensor.name);
        let row_bytes = tensor.dtype.bytes_for(width).expect("a width of whole blocks");
        for row in rows.clone() {
            let bytes = &tensor.data[row * row_bytes..(row + 1) * row_bytes];
            self.column(tensor.dtype, bytes, first + row - rows.start);
        }
    }
}
