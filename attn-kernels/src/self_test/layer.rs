//! One layer of a paged cache with sequences in scattered blocks. Every slot that holds no token is NaN.

use half::f16;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use sparse_select::dsa::fp8;

pub use super::floats::Index;

use super::floats::FloatLayout;
use crate::cpu::cache_write::{int8_scale, stored_row};
use crate::cpu::{PagedKv, Tolerance};
use crate::gpu::{Buf, Gpu, GpuError};
use crate::kernel::{KvDtype, KvShape};
use crate::rows::KvWord;

/// Tolerance of attention in f32: scores carry an error of about `head_dim * 2^-24` of their size, `exp` one of 3 +
/// 2|x| units in the last place (WGSL's bound), and outputs are averages of values of size 1. Keys and values are the
/// rounded ones on both sides, so the cache's type does not matter.
pub const ATTENTION: Tolerance = Tolerance { abs: 2e-5, rel: 1e-4 };

/// Tolerance of attention with cooperative matrices: queries, values and softmax weights are rounded to f16, so that
/// scores of some units err by some 1e-3, and so do averages of values of size 1.
pub const COOP: Tolerance = Tolerance { abs: 5e-3, rel: 5e-3 };

/// Returns the tolerance of attention for queries with the factor `loud`: scores err in proportion to their size.
pub(crate) fn loudly(tolerance: Tolerance, loud: f32) -> Tolerance {
    Tolerance { abs: tolerance.abs * f64::from(loud.max(1.0)), ..tolerance }
}

/// A cache of keys and values, and the block tables of its sequences.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Shape of both caches.
    pub shape: KvShape,
    /// Keys, in the layout of [`PagedKv`].
    pub k: Vec<f32>,
    /// Values, in the layout of [`PagedKv`].
    pub v: Vec<f32>,
    /// Block tables of all sequences, one after the other.
    pub tables: Vec<u32>,
    /// First entry of each sequence in `tables`.
    pub table_of: Vec<u32>,
    /// A block that no sequence has.
    spare: u32,
}

impl Layer {
    /// Zeroes the keys of every other block of each sequence, from the fourth block on, so that attention may skip
    /// these blocks.
    pub fn hush(&mut self) {
        let (heads, tokens) = (self.shape.num_kv_heads as usize, self.shape.block_size as usize);
        let ends = self.table_of.iter().skip(1).map(|end| *end as usize).chain([self.tables.len()]);
        for (first, end) in self.table_of.iter().zip(ends) {
            for block in self.tables[*first as usize..end].iter().skip(3).step_by(2) {
                for (head, offset) in
                    (0..heads).flat_map(|head| (0..tokens).map(move |offset| (head, offset)))
                {
                    for dim in 0..self.shape.head_dim as usize {
                        let at = self.shape.k_index(*block as usize, head, offset, dim);
                        // Slots without a token stay NaN.
                        self.k[at] *= 0.0;
                    }
                }
            }
        }
    }

    /// Creates sequences of these lengths. Their contents depend on `seed` and their index alone, not on the block
    /// size, the other sequences, or the blocks they get.
    #[must_use]
    pub fn new(shape: KvShape, lens: &[u32], seed: u64) -> Self {
        let mut layer = Self::empty(shape, lens, seed);
        let elements = layer.num_blocks() as usize * shape.block_elements();
        (layer.k, layer.v) = (vec![f32::NAN; elements], vec![f32::NAN; elements]);
        for ((index, len), table) in (0..).zip(lens).zip(layer.table_of.clone()) {
            layer.fill(table as usize, *len as usize, seed ^ (index + 1) << 32);
        }
        layer
    }

    /// Creates the block tables of sequences of these lengths, without contents.
    pub(crate) fn empty(shape: KvShape, lens: &[u32], seed: u64) -> Self {
        let blocks: Vec<u32> = lens.iter().map(|len| len.div_ceil(shape.block_size)).collect();
        let table_of = (0..lens.len()).map(|index| blocks[..index].iter().sum()).collect();
        let used: u32 = blocks.iter().sum();
        let mut tables: Vec<u32> = (0..used + 2).collect();
        tables.shuffle(&mut StdRng::seed_from_u64(seed));
        let spare = tables[used as usize];
        tables.truncate(used as usize);
        Self { shape, k: Vec::new(), v: Vec::new(), tables, table_of, spare }
    }

    fn fill(&mut self, table: usize, len: usize, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let block_size = self.shape.block_size as usize;
        for token in 0..len {
            let (block, offset) = (self.tables[table + token / block_size] as usize, token % block_size);
            for head in 0..self.shape.num_kv_heads as usize {
                let mut row = || -> Vec<f32> {
                    let row: Vec<f32> =
                        (0..self.shape.head_dim).map(|_| rng.random_range(-1.0..1.0)).collect();
                    stored_row(self.shape.dtype, 1.0, &row)
                };
                let (k, v) = (row(), row());
                for dim in 0..self.shape.head_dim as usize {
                    self.k[self.shape.k_index(block, head, offset, dim)] = k[dim];
                    self.v[self.shape.v_index(block, head, offset, dim)] = v[dim];
                }
            }
        }
    }

    /// Removes from sequence `index` the blocks before the block that holds token `first`.
    pub fn recycle(&mut self, index: usize, first: u32) {
        let start = self.table_of[index] as usize;
        self.tables[start..start + (first / self.shape.block_size) as usize].fill(self.spare);
    }

    /// Removes from each sequence the blocks before the block that holds its token in `firsts`.
    pub fn recycle_each(&mut self, firsts: impl Iterator<Item = u32>) {
        firsts.enumerate().for_each(|(index, first)| self.recycle(index, first));
    }

    /// Number of blocks of the cache.
    ///
    /// # Panics
    /// Never: a layer is small.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        u32::try_from(self.tables.len() + 2).expect("layers are small")
    }

    /// Returns the cache in the form that references read.
    #[must_use]
    pub fn kv(&self) -> PagedKv<'_> {
        PagedKv { shape: self.shape, k: &self.k, v: &self.v }
    }

    /// Returns K and V in the form that the device stores.
    #[must_use]
    pub fn words(&self) -> [Vec<u32>; 2] {
        let index: [Index; 2] = [KvShape::k_index, KvShape::v_index];
        let caches = [(&self.k, index[0]), (&self.v, index[1])];
        caches.map(|(cache, index)| cache_words(&self.shape, index, cache))
    }

    /// Uploads K and V to the device.
    ///
    /// # Errors
    /// As [`Gpu::upload`].
    pub fn upload(&self, gpu: &Gpu) -> Result<[Buf<KvWord>; 2], GpuError> {
        let [k, v] = self.words();
        let upload = |label, words: &[u32]| gpu.upload(label, bytemuck::cast_slice(words));
        Ok([upload("k_cache", &k)?, upload("v_cache", &v)?])
    }
}

/// Shape of a cache, and the function that returns the index of an element.
pub type CacheOrder<'a> = (&'a KvShape, Index);

/// Returns the elements of a cache in another order.
#[must_use]
pub fn converted(cache: &[f32], (shape, from): CacheOrder<'_>, (other, to): CacheOrder<'_>) -> Vec<f32> {
    let mut converted = vec![0.0; cache.len()];
    for_block_heads(shape, cache.len(), |block, head| {
        for (offset, dim) in
            (0..shape.block_size as usize).flat_map(|at| (0..shape.head_dim as usize).map(move |d| (at, d)))
        {
            converted[to(other, block, head, offset, dim)] = cache[from(shape, block, head, offset, dim)];
        }
    });
    converted
}

/// Converts values of a cache, in the layout of `index`, to the words that the device stores.
#[must_use]
pub fn cache_words(shape: &KvShape, index: Index, cache: &[f32]) -> Vec<u32> {
    if shape.dtype != KvDtype::Int8 {
        return words(shape.dtype, cache);
    }
    let mut bytes = Vec::new();
    for_block_heads(shape, cache.len(), |block, head| {
        let size = shape.block_size as usize;
        let row = |offset| -> Vec<f32> {
            (0..shape.head_dim as usize).map(|dim| cache[index(shape, block, head, offset, dim)]).collect()
        };
        let scales: Vec<f32> = (0..size).map(|offset| int8_scale(&row(offset))).collect();
        let start = bytes.len();
        bytes.resize(start + size * shape.head_dim as usize, 0);
        for (offset, scale) in scales.iter().enumerate() {
            for (dim, x) in row(offset).into_iter().enumerate() {
                #[expect(clippy::cast_possible_truncation, reason = "a code from -127 to 127; NaN is 0")]
                let code = (x / scale).round_ties_even() as i8;
                bytes[start + index(shape, 0, 0, offset, dim)] = code.cast_unsigned();
            }
        }
        // A row of NaN, which holds no token, has a scale of NaN.
        let kept = |(offset, scale): (usize, &f32)| if row(offset)[0].is_nan() { f32::NAN } else { *scale };
        bytes.extend(scales.iter().enumerate().flat_map(|pair| kept(pair).to_le_bytes()));
    });
    bytemuck::pod_collect_to_vec(&bytes)
}

fn for_block_heads(shape: &KvShape, elements: usize, mut each: impl FnMut(usize, usize)) {
    for block in 0..elements / shape.block_elements() {
        for head in 0..shape.num_kv_heads as usize {
            each(block, head);
        }
    }
}

/// Converts values to the words that the device stores; for int8 see [`cache_words`].
#[must_use]
pub fn words(dtype: KvDtype, values: &[f32]) -> Vec<u32> {
    match dtype {
        KvDtype::F32 => values.iter().map(|x| x.to_bits()).collect(),
        KvDtype::F16 => {
            let half = |x: f32| u32::from(f16::from_f32(x).to_bits());
            values.chunks_exact(2).map(|pair| half(pair[0]) | half(pair[1]) << 16).collect()
        }
        KvDtype::Fp8 => {
            let codes: Vec<u8> = values.iter().map(|x| fp8::encode(*x)).collect();
            bytemuck::pod_collect_to_vec(&codes)
        }
        KvDtype::Int8 => panic!("int8 has scales: see cache_words"),
    }
}

/// Converts words that the device stores to values: the inverse of [`words`].
#[must_use]
pub fn values(dtype: KvDtype, words: &[u32]) -> Vec<f32> {
    FloatLayout::of(dtype).values(words)
}

/// Makes queries: `rows` rows of `stride`, the first `used` elements of each random, the rest NaN. Scores then spread
/// over some units.
#[must_use]
pub fn queries(rows: usize, used: usize, stride: usize, seed: u64) -> Vec<f32> {
    let mut q = vec![f32::NAN; rows * stride];
    for (row, q) in (0..).zip(q.chunks_exact_mut(stride)) {
        let mut rng = StdRng::seed_from_u64(seed ^ (row << 20));
        q[..used].fill_with(|| rng.random_range(-4.0..4.0));
    }
    q
}

/// Makes random numbers in -1..1.
#[must_use]
pub fn floats(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}
