//! Repacks matrices for the GPU, still quantised: blocks of 32 along k, columns side by side.
//!
//! A checkpoint stores a matrix row by row; neighbouring lanes of a kernel own neighbouring output columns, so here
//! the same block of neighbouring columns lies side by side and every load is coalesced. The modules
//! `weights_*.wgsl` say what the two planes of each type hold.

use half::f16;

use crate::weights::scale_min;
use crate::{Dtype, Tensor};

/// Elements along k in a block.
pub const BLOCK: usize = 32;

/// Blocks in a super-block of the K types.
const SUPER: usize = 8;

/// A packed matrix, `[in_features, cols]`, of which tensors fill ranges of columns.
#[derive(Clone, Debug)]
pub struct Packed {
    /// How elements are coded.
    pub format: Format,
    /// Output features.
    pub cols: usize,
    /// Blocks along k.
    pub blocks: usize,
    /// `wq`: four words each.
    pub quants: Vec<[u32; 4]>,
    /// `ws`.
    pub scales: Vec<u32>,
}

/// Codings of a packed matrix; types with one layout share a coding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// `F32`
    F32,
    /// `F16`
    F16,
    /// `BF16`
    Bf16,
    /// `Q4_0` and `Q4_1`
    Q4,
    /// `Q8_0`
    Q8,
    /// `Q4_K`
    Q4K,
    /// `Q5_K`
    Q5K,
    /// `Q6_K`
    Q6K,
    /// `MXFP4`
    Mxfp4,
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
            Dtype::Q4_0 | Dtype::Q4_1 => Self::Q4,
            Dtype::Q8_0 => Self::Q8,
            Dtype::Q4_K => Self::Q4K,
            Dtype::Q5_K => Self::Q5K,
            Dtype::Q6_K => Self::Q6K,
            Dtype::MXFP4 => Self::Mxfp4,
        }
    }
}

impl Format {
    /// The WGSL module that reads it.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::F32 => "weights_f32",
            Self::F16 => "weights_f16",
            Self::Bf16 => "weights_bf16",
            Self::Q4 => "weights_q4",
            Self::Q8 => "weights_q8",
            Self::Q4K => "weights_q4k",
            Self::Q5K => "weights_q5k",
            Self::Q6K => "weights_q6k",
            Self::Mxfp4 => "weights_mxfp4",
        }
    }

    /// Whether elements are codes of at most 8 bits, which integer dot products take.
    #[must_use]
    pub fn has_codes(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Quadruples of words a block of one column takes in `wq`.
    fn quads(self) -> usize {
        match self {
            Self::F32 => 8,
            Self::F16 | Self::Bf16 => 4,
            Self::Q8 => 2,
            Self::Q4 | Self::Q4K | Self::Q5K | Self::Q6K | Self::Mxfp4 => 1,
        }
    }

    /// Words a column of `blocks` blocks takes in `ws`.
    fn scale_words(self, blocks: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q4 | Self::Mxfp4 => blocks,
            Self::Q8 => blocks.div_ceil(2),
            Self::Q4K => blocks / 2 + blocks / SUPER,
            Self::Q5K => blocks / 2 + blocks / SUPER + blocks,
            Self::Q6K => blocks / 2 + blocks / SUPER + 2 * blocks,
        }
    }

    /// Device bytes of one column of `blocks` blocks.
    #[must_use]
    pub fn column_bytes(self, blocks: usize) -> usize {
        16 * self.quads() * blocks + 4 * self.scale_words(blocks)
    }
}

impl Packed {
    /// An empty matrix for tensors of `dtype` with `in_features`: a multiple of 32 (256 for the K types), or for the plain
    /// types of 8, the last block then filled up with zeros.
    #[must_use]
    pub fn new(dtype: Dtype, in_features: usize, cols: usize) -> Self {
        let blocks = in_features.div_ceil(BLOCK);
        let format = Format::from(dtype);
        let quants = vec![[0; 4]; format.quads() * blocks * cols];
        let scales = vec![0; format.scale_words(blocks) * cols];
        Self { format, cols, blocks, quants, scales }
    }

    /// Writes rows `rows` of `tensor` as columns from `first` on.
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

    fn column(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        match dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => self.plain(bytes, col),
            Dtype::Q4_0 | Dtype::Q4_1 => self.q4(dtype, bytes, col),
            Dtype::Q8_0 => self.q8(bytes, col),
            Dtype::MXFP4 => self.mxfp4(bytes, col),
            Dtype::Q4_K | Dtype::Q5_K => self.q45k(dtype, bytes, col),
            Dtype::Q6_K => self.q6k(bytes, col),
        }
    }

    fn put(&mut self, block: usize, quad: usize, col: usize, words: [u32; 4]) {
        let at = (block * self.format.quads() + quad) * self.cols + col;
        self.quants[at] = words;
    }

    /// Word `index` of column `col` in `ws`.
    fn scale(&mut self, index: usize, col: usize, word: u32) {
        self.scales[index * self.cols + col] = word;
    }

    /// The 16 bits of block `block` in the words that two blocks share.
    fn half_scale(&mut self, block: usize, col: usize, half: u16) {
        let word = &mut self.scales[block / 2 * self.cols + col];
        let shift = 16 * (block % 2);
        *word = *word & !(0xffff << shift) | u32::from(half) << shift;
    }

    fn plain(&mut self, bytes: &[u8], col: usize) {
        let quads = self.format.quads();
        for (i, words) in bytes.chunks_exact(16).enumerate() {
            self.put(i / quads, i % quads, col, words_of(words));
        }
    }

    fn q4(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        for (block, b) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            let d = f16::from_le_bytes([b[0], b[1]]);
            let (min, nibbles) = match dtype {
                Dtype::Q4_0 => (f16::from_f32(-8.0 * d.to_f32()), &b[2..]),
                _ => (f16::from_le_bytes([b[2], b[3]]), &b[4..]),
            };
            self.put(block, 0, col, nibbles_of(split_halves(nibbles)));
            self.scale(block, col, u32::from(d.to_bits()) | u32::from(min.to_bits()) << 16);
        }
    }

    fn q8(&mut self, bytes: &[u8], col: usize) {
        for (block, b) in bytes.chunks_exact(Dtype::Q8_0.block_bytes()).enumerate() {
            self.put(block, 0, col, words_of(&b[2..18]));
            self.put(block, 1, col, words_of(&b[18..34]));
            self.half_scale(block, col, u16::from_le_bytes([b[0], b[1]]));
        }
    }

    fn mxfp4(&mut self, bytes: &[u8], col: usize) {
        for (block, b) in bytes.chunks_exact(Dtype::MXFP4.block_bytes()).enumerate() {
            self.put(block, 0, col, nibbles_of(split_halves(&b[1..])));
            // 2^(e - 127): the exponent field itself, but for the subnormal e = 0.
            let scale = if b[0] == 0 { 0x0040_0000 } else { u32::from(b[0]) << 23 };
            self.scale(block, col, scale);
        }
    }

    fn q45k(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        let blocks = self.blocks;
        for (super_block, b) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            self.scale(blocks / 2 + super_block, col, word_of(&b[..4]));
            let nibbles = &b[b.len() - 128..];
            for sub in 0..SUPER {
                let block = super_block * SUPER + sub;
                let run = &nibbles[sub / 2 * 32..][..32];
                let codes = std::array::from_fn(|i| (run[i] >> (4 * (sub % 2))) & 15);
                self.put(block, 0, col, nibbles_of(codes));
                let (scale, min) = scale_min(&b[4..16], sub);
                self.half_scale(block, col, u16::from_le_bytes([scale, min]));
                if dtype == Dtype::Q5_K {
                    // Bit q of byte j is that of element 4 * q + j.
                    let bit = |i: usize| u32::from((b[16 + i] >> sub) & 1) << (8 * (i % 4) + i / 4);
                    let fifth = (0..BLOCK).fold(0, |bits, i| bits | bit(i));
                    self.scale(blocks / 2 + blocks / SUPER + block, col, fifth);
                }
            }
        }
    }

    fn q6k(&mut self, bytes: &[u8], col: usize) {
        let blocks = self.blocks;
        for (super_block, b) in bytes.chunks_exact(Dtype::Q6_K.block_bytes()).enumerate() {
            let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
            self.scale(blocks / 2 + super_block, col, u32::from(u16::from_le_bytes([b[208], b[209]])));
            for sub in 0..SUPER {
                let block = super_block * SUPER + sub;
                // Each half holds four runs of 32: runs 0 and 1 use the low nibbles, runs 2 and 3 the high ones.
                let (half, run) = (sub / 4, sub % 4);
                let codes: [u8; BLOCK] =
                    std::array::from_fn(|i| (low[64 * half + 32 * (run % 2) + i] >> (4 * (run / 2))) & 15);
                self.put(block, 0, col, nibbles_of(codes));
                let pair = |i: usize| u32::from((high[32 * half + i] >> (2 * run)) & 3);
                for word in 0..2 {
                    // Bits 2 * q and 2 * q + 1 of byte j are those of element 16 * word + 4 * q + j.
                    let place = |i: usize| 8 * (i % 4) + 2 * (i / 4);
                    let bits = (0..16).fold(0, |bits, i| bits | pair(16 * word + i) << place(i));
                    self.scale(blocks / 2 + blocks / SUPER + block * 2 + word, col, bits);
                }
                self.half_scale(block, col, u16::from_le_bytes([scales[2 * sub], scales[2 * sub + 1]]));
            }
        }
    }
}

fn word_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn words_of(bytes: &[u8]) -> [u32; 4] {
    std::array::from_fn(|i| word_of(&bytes[4 * i..]))
}

/// Codes of a block whose first half lies in low nibbles and second half in high ones.
fn split_halves(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// Eight elements a word: byte j holds element j in its low nibble and element j + 4 in its high one, so that one mask and
/// one shift make bytes of four neighbours.
fn nibbles_of(codes: [u8; BLOCK]) -> [u32; 4] {
    let place = |i: usize| 8 * (i % 4) + 4 * (i / 4);
    std::array::from_fn(|w| (0..8).fold(0, |word, i| word | u32::from(codes[8 * w + i]) << place(i)))
}
