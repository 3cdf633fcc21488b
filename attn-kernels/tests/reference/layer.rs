//! One layer of a paged cache with sequences in scattered blocks. Every slot that holds no token is NaN.

use attn_kernels::cpu::cache_write::stored;
use attn_kernels::cpu::{PagedKv, Tolerance};
use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::{KvDtype, KvShape};
use half::f16;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Attention in f32: scores carry an error of about `head_dim * 2^-24` of their size, `exp` one of 3 + 2|x| units in
/// the last place (WGSL's bound), and outputs are averages of values of size 1. Keys and values are the rounded ones on
/// both sides, so the cache's type does not matter.
pub(crate) const ATTENTION: Tolerance = Tolerance { abs: 2e-5, rel: 1e-4 };

/// Head sizes, KV heads, query heads a KV head, block sizes: each of interest at least once, not all pairs, as every
/// shape is another pipeline. Large heads come with groups that a lane of `paged_prefill` takes one by one: software
/// drivers need a minute to compile four heads of 256.
pub(crate) const SHAPES: [(u32, u32, u32, u32); 7] = [
    (256, 1, 1, 4),
    (128, 1, 7, 8),
    (64, 2, 2, 16),
    (40, 1, 3, 32),
    (24, 2, 4, 64),
    (32, 1, 8, 128),
    (16, 1, 16, 256),
];

/// A shape and its query heads.
pub(crate) fn shape_of(index: usize, dtype: KvDtype) -> (KvShape, u32) {
    let (head_dim, num_kv_heads, group, block_size) = SHAPES[index];
    (KvShape { num_kv_heads, head_dim, block_size, dtype }, num_kv_heads * group)
}

/// Any shape that kernels take.
pub(crate) fn shapes() -> impl Strategy<Value = (KvShape, u32)> {
    let head_dim =
        prop_oneof![Just(16), Just(32), Just(64), Just(96), Just(128), (2u32..=32).prop_map(|n| 8 * n)];
    let group = prop::sample::select(vec![1, 2, 3, 4, 7, 8, 16]);
    let dtype = prop::sample::select(vec![KvDtype::F16, KvDtype::F32]);
    (head_dim, 1u32..=3, group, 2u32..=8, dtype).prop_map(|(head_dim, num_kv_heads, group, log, dtype)| {
        (KvShape { num_kv_heads, head_dim, block_size: 1 << log, dtype }, num_kv_heads * group)
    })
}

/// A cache of values, and the tables of its sequences.
pub(crate) struct Layer {
    pub(crate) shape: KvShape,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    /// Physical blocks of all sequences.
    pub(crate) tables: Vec<u32>,
    /// First entry of each sequence in `tables`.
    pub(crate) table_of: Vec<u32>,
    /// A block of no sequence.
    spare: u32,
}

impl Layer {
    /// Sequences of these lengths. Their contents depend on `seed` and their index alone, not on the block size, the
    /// other sequences, or the blocks they get.
    pub(crate) fn new(shape: KvShape, lens: &[u32], seed: u64) -> Self {
        let needed = |len: &u32| len.div_ceil(shape.block_size);
        let used: u32 = lens.iter().map(needed).sum();
        let mut free: Vec<u32> = (0..used + 2).collect();
        free.shuffle(&mut StdRng::seed_from_u64(seed));
        let elements = free.len() * shape.block_bytes() / shape.dtype.bytes();
        let (k, v) = (vec![f32::NAN; elements], vec![f32::NAN; elements]);
        let mut layer =
            Self { shape, k, v, tables: Vec::new(), table_of: Vec::new(), spare: free[used as usize] };
        for (index, len) in (0..).zip(lens) {
            layer.table_of.push(u32::try_from(layer.tables.len()).unwrap());
            layer.tables.extend(free.drain(..needed(len) as usize));
            layer.fill(*len as usize, seed ^ (index + 1) << 32);
        }
        layer
    }

    fn fill(&mut self, len: usize, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let block_size = self.shape.block_size as usize;
        let table = *self.table_of.last().unwrap() as usize;
        for token in 0..len {
            let (block, offset) = (self.tables[table + token / block_size] as usize, token % block_size);
            for head in 0..self.shape.num_kv_heads as usize {
                for dim in 0..self.shape.head_dim as usize {
                    let mut next = || stored(self.shape.dtype, rng.random_range(-1.0..1.0));
                    let (k, v) = (next(), next());
                    self.k[self.shape.k_index(block, head, offset, dim)] = k;
                    self.v[self.shape.v_index(block, head, offset, dim)] = v;
                }
            }
        }
    }

    /// Takes the blocks before the one of token `first` away from sequence `index`.
    pub(crate) fn recycle(&mut self, index: usize, first: u32) {
        let start = self.table_of[index] as usize;
        self.tables[start..start + (first / self.shape.block_size) as usize].fill(self.spare);
    }

    pub(crate) fn kv(&self) -> PagedKv<'_> {
        PagedKv { shape: self.shape, k: &self.k, v: &self.v }
    }

    /// K and V on the device.
    pub(crate) fn upload(&self, gpu: &Gpu) -> [Buf<u32>; 2] {
        [&self.k, &self.v].map(|values| gpu.upload("cache", &words(self.shape.dtype, values)).unwrap())
    }
}

/// Values as the device stores them.
pub(crate) fn words(dtype: KvDtype, values: &[f32]) -> Vec<u32> {
    match dtype {
        KvDtype::F32 => values.iter().map(|x| x.to_bits()).collect(),
        KvDtype::F16 => {
            let half = |x: f32| u32::from(f16::from_f32(x).to_bits());
            values.chunks_exact(2).map(|pair| half(pair[0]) | half(pair[1]) << 16).collect()
        }
    }
}

/// And back.
pub(crate) fn values(dtype: KvDtype, words: &[u32]) -> Vec<f32> {
    match dtype {
        KvDtype::F32 => words.iter().copied().map(f32::from_bits).collect(),
        KvDtype::F16 => bytemuck::cast_slice::<u32, f16>(words).iter().map(|x| x.to_f32()).collect(),
    }
}

/// Queries: `rows` rows of `stride`, the first `used` of each random, the rest NaN. Scores then spread over some units.
pub(crate) fn queries(rows: usize, used: usize, stride: usize, seed: u64) -> Vec<f32> {
    let mut q = vec![f32::NAN; rows * stride];
    for (row, q) in (0..).zip(q.chunks_exact_mut(stride)) {
        let mut rng = StdRng::seed_from_u64(seed ^ (row << 20));
        q[..used].fill_with(|| rng.random_range(-4.0..4.0));
    }
    q
}
