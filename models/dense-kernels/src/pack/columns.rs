//! Conversion of each storage type into a column of a packed matrix.

use half::f16;

use super::{BLOCK, Packed, SUPER};
use crate::Dtype;
use checkpoint::codes::{bit_pair, five_bits, iq4_scale, q3_code, q3_scale, scale_min};

impl Packed {
    /// Writes a row of a tensor as column `col`.
    pub(super) fn column(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        match dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => self.plain(bytes, col),
            Dtype::Q4_0 | Dtype::Q4_1 => self.q4(dtype, bytes, col),
            Dtype::Q5_0 | Dtype::Q5_1 => self.q5(dtype, bytes, col),
            Dtype::Q8_0 => self.q8(bytes, col),
            Dtype::IQ4_NL | Dtype::IQ4_XS => self.iq4(dtype, bytes, col),
            Dtype::MXFP4 => self.mxfp4(bytes, col),
            Dtype::F8_E4M3 => self.fp8(bytes, col),
            Dtype::Q2_K => self.q2k(bytes, col),
            Dtype::Q3_K => self.q3k(bytes, col),
            Dtype::Q4_K | Dtype::Q5_K => self.q45k(dtype, bytes, col),
            Dtype::Q6_K => self.q6k(bytes, col),
            other => unreachable!("a tensor of {other} is converted before it is packed"),
        }
    }

    /// Writes group `index` of column `col` in `wq`.
    fn put(&mut self, index: usize, col: usize, words: [u32; 4]) {
        self.quants[index * self.cols + col] = words;
    }

    /// Writes word `index` of column `col` in `ws`.
    fn scale(&mut self, index: usize, col: usize, word: u32) {
        self.scales[index * self.cols + col] = word;
    }

    /// Writes the 16 bits of block `block` to its half of a word that two blocks share.
    fn half_scale(&mut self, block: usize, col: usize, half: u16) {
        let word = &mut self.scales[block / 2 * self.cols + col];
        let shift = 16 * (block % 2);
        *word = *word & !(0xffff << shift) | u32::from(half) << shift;
    }

    fn plain(&mut self, bytes: &[u8], col: usize) {
        for (i, words) in bytes.chunks_exact(16).enumerate() {
            self.put(i, col, words_of(words));
        }
    }

    fn q4(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        for (block, b) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            let d = f16::from_le_bytes([b[0], b[1]]);
            let (min, nibbles) = match dtype {
                Dtype::Q4_0 => (f16::from_f32(-8.0 * d.to_f32()), &b[2..]),
                _ => (f16::from_le_bytes([b[2], b[3]]), &b[4..]),
            };
            self.put(block, col, nibbles_of(split_halves(nibbles)));
            self.scale(block, col, pair_of(d, min));
        }
    }

    fn q8(&mut self, bytes: &[u8], col: usize) {
        for (block, b) in bytes.chunks_exact(Dtype::Q8_0.block_bytes()).enumerate() {
            self.put(2 * block, col, words_of(&b[2..18]));
            self.put(2 * block + 1, col, words_of(&b[18..34]));
            self.half_scale(block, col, u16::from_le_bytes([b[0], b[1]]));
        }
    }

    fn q5(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        let blocks = self.blocks;
        for (block, b) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            let d = f16::from_le_bytes([b[0], b[1]]);
            let (min, codes) = match dtype {
                Dtype::Q5_0 => (f16::from_f32(-16.0 * d.to_f32()), five_bits(&b[2..])),
                _ => (f16::from_le_bytes([b[2], b[3]]), five_bits(&b[4..])),
            };
            self.put(block, col, nibbles_of(codes.map(|code| code & 15)));
            self.scale(block, col, pair_of(d, min));
            self.scale(blocks + block, col, bits_of(|i| codes[i] >> 4));
        }
    }

    /// Writes a column of either IQ4 type in the same layout: the scale of a block is the product of two f16, exact in
    /// f32.
    fn iq4(&mut self, dtype: Dtype, bytes: &[u8], col: usize) {
        let first = self.blocks.div_ceil(2);
        let subs = dtype.block_elems() / BLOCK;
        for (i, b) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            let d = f16::from_le_bytes([b[0], b[1]]);
            let nibbles = &b[b.len() - 16 * subs..];
            for (sub, nibbles) in nibbles.chunks_exact(16).enumerate() {
                let block = i * subs + sub;
                let (scale, of_all) = match dtype {
                    Dtype::IQ4_XS => (f16::from(iq4_scale(b, sub)), d),
                    _ => (d, f16::ONE),
                };
                self.put(block, col, nibbles_of(split_halves(nibbles)));
                self.half_scale(block, col, scale.to_bits());
                self.scale(first + block / SUPER, col, of_all.to_bits().into());
            }
        }
    }

    /// Writes the two-bit codes of block `block` to two of the four words that two blocks share.
    fn put_pairs(&mut self, block: usize, col: usize, code: impl Fn(usize) -> u8) {
        let words = &mut self.quants[block / 2 * self.cols + col];
        words[2 * (block % 2)..][..2].copy_from_slice(&pairs_of(code));
    }

    fn q2k(&mut self, bytes: &[u8], col: usize) {
        let blocks = self.blocks;
        for (super_block, b) in bytes.chunks_exact(Dtype::Q2_K.block_bytes()).enumerate() {
            self.scale(blocks / 2 + super_block, col, word_of(&b[80..]));
            for sub in 0..SUPER {
                let block = super_block * SUPER + sub;
                self.put_pairs(block, col, |i| bit_pair(&b[16..80], sub * BLOCK + i));
                self.half_scale(block, col, u16::from_le_bytes([b[2 * sub], b[2 * sub + 1]]));
            }
        }
    }

    fn q3k(&mut self, bytes: &[u8], col: usize) {
        let blocks = self.blocks;
        for (super_block, b) in bytes.chunks_exact(Dtype::Q3_K.block_bytes()).enumerate() {
            self.scale(blocks / 2 + super_block, col, u16::from_le_bytes([b[108], b[109]]).into());
            for sub in 0..SUPER {
                let block = super_block * SUPER + sub;
                let code = |i| q3_code(b, sub * BLOCK + i);
                self.put_pairs(block, col, |i| code(i) & 3);
                self.scale(blocks / 2 + blocks / SUPER + block, col, bits_of(|i| code(i) >> 2));
                let scales = [2 * sub, 2 * sub + 1].map(|j| q3_scale(&b[96..108], j).cast_unsigned());
                self.half_scale(block, col, u16::from_le_bytes(scales));
            }
        }
    }

    fn mxfp4(&mut self, bytes: &[u8], col: usize) {
        for (block, b) in bytes.chunks_exact(Dtype::MXFP4.block_bytes()).enumerate() {
            // Kernels negate whole words, which a negative zero would carry through.
            let codes = split_halves(&b[1..]).map(|code| if code == 8 { 0 } else { code });
            self.put(block, col, nibbles_of(codes));
            // 2^(e - 127): the exponent field itself, but for the subnormal e = 0.
            let scale = if b[0] == 0 { 0x0040_0000 } else { u32::from(b[0]) << 23 };
            self.scale(block, col, scale);
        }
    }

    fn fp8(&mut self, bytes: &[u8], col: usize) {
        for (four, b) in bytes.chunks_exact(Dtype::F8_E4M3.block_bytes()).enumerate() {
            self.scale(four, col, word_of(&b[..4]));
            for (i, words) in b[4..].chunks_exact(16).enumerate() {
                self.put(8 * four + i, col, words_of(words));
            }
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
                self.put(block, col, nibbles_of(codes));
                let (scale, min) = scale_min(&b[4..16], sub);
                self.half_scale(block, col, u16::from_le_bytes([scale, min]));
                if dtype == Dtype::Q5_K {
                    let fifth = bits_of(|i| (b[16 + i] >> sub) & 1);
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
                self.put(block, col, nibbles_of(codes));
                let pair = |i: usize| (high[32 * half + i] >> (2 * run)) & 3;
                for (word, bits) in pairs_of(pair).into_iter().enumerate() {
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

fn pair_of(low: f16, high: f16) -> u32 {
    u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
}

/// Collects one bit of each element: bit q of byte j belongs to element 4 * q + j.
fn bits_of(bit: impl Fn(usize) -> u8) -> u32 {
    (0..BLOCK).fold(0, |bits, i| bits | u32::from(bit(i)) << (8 * (i % 4) + i / 4))
}

/// Collects two bits of each element: bits 2 * q and 2 * q + 1 of byte j belong to element 16 * word + 4 * q + j.
fn pairs_of(pair: impl Fn(usize) -> u8) -> [u32; 2] {
    let place = |i: usize| 8 * (i % 4) + 2 * (i / 4);
    std::array::from_fn(|word| (0..16).fold(0, |bits, i| bits | u32::from(pair(16 * word + i)) << place(i)))
}

/// Returns the codes of a block whose first half is in low nibbles and second half in high ones.
fn split_halves(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// Packs eight elements per word: byte j holds element j in its low nibble and element j + 4 in its high one, so that one mask
/// and one shift yield bytes of four neighbours.
fn nibbles_of(codes: [u8; BLOCK]) -> [u32; 4] {
    let place = |i: usize| 8 * (i % 4) + 4 * (i / 4);
    std::array::from_fn(|w| (0..8).fold(0, |word, i| word | u32::from(codes[8 * w + i]) << place(i)))
}
