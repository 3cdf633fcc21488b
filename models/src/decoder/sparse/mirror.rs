//! Keys of the paged cache on the host, rounded like on the device, for policies that score on the CPU.

use attn_kernels::gpu::{Pass, Read};
use attn_kernels::kernel::{KvDtype, KvShape, block_digest};
use attn_kernels::rows::KvWord;
use half::f16;
use kvblock::BlockSize;
use rustc_hash::FxHashMap;
use sparse_select::digest::DigestFormat;
use sparse_select::dsa::fp8;

use crate::KvPool;

/// Keys by layer and physical block, read from the device on first use.
#[derive(Debug)]
pub(super) struct Mirror {
    shape: KvShape,
    /// Keys of each block, `[num_kv_heads, block_size, head_dim]`, by layer and physical block.
    layers: Vec<FxHashMap<u32, Box<[f32]>>>,
}

/// Returns the digest format of kernels for blocks of this shape.
pub(super) fn digests(shape: &KvShape) -> DigestFormat {
    match block_digest::dtype(shape.dtype) {
        KvDtype::F32 => DigestFormat::F32,
        _ => DigestFormat::F16 { page: BlockSize::new(shape.block_size).expect("a page has tokens") },
    }
}

impl Mirror {
    pub(super) fn new(shape: KvShape, num_layers: usize) -> Self {
        Self { shape, layers: vec![FxHashMap::default(); num_layers] }
    }

    /// Forgets blocks that the device writes.
    pub(super) fn forget(&mut self, blocks: impl Iterator<Item = u32>) {
        for block in blocks {
            for layer in &mut self.layers {
                layer.remove(&block);
            }
        }
    }

    /// Records readbacks of the blocks of `tables` that the mirror lacks.
    pub(super) fn read_missing<'a>(
        &self,
        pass: &mut Pass,
        kv: &KvPool,
        layer: usize,
        tables: impl Iterator<Item = &'a u32>,
    ) -> Vec<(u32, Read<KvWord>)> {
        let words = self.shape.block_bytes() / 4;
        let mut missing: Vec<u32> = tables.filter(|b| !self.layers[layer].contains_key(b)).copied().collect();
        missing.sort_unstable();
        missing.dedup();
        let mut read = |block: u32| {
            let mut places = kv.by_id(layer);
            let (held, [k, _]) = places.find(|(held, _)| held.contains(&block)).expect("a block of the pool");
            let first = (block - held.start) as usize * words;
            (block, pass.read(k, first..first + words))
        };
        missing.into_iter().map(&mut read).collect()
    }

    /// Stores the device's contents of a block.
    pub(super) fn insert(&mut self, layer: usize, block: u32, words: &[KvWord]) {
        let s = &self.shape;
        let (heads, size, dim) = (s.num_kv_heads as usize, s.block_size as usize, s.head_dim as usize);
        let mut block_keys = vec![0.0; heads * size * dim].into_boxed_slice();
        let halves: &[f16] = bytemuck::cast_slice(words);
        let floats: &[f32] = bytemuck::cast_slice(words);
        let bytes: &[u8] = bytemuck::cast_slice(words);
        for (i, value) in block_keys.iter_mut().enumerate() {
            let at = s.k_index(0, i / (size * dim), i / dim % size, i % dim);
            *value = match s.dtype {
                KvDtype::F16 => halves[at].to_f32(),
                KvDtype::F32 => floats[at],
                KvDtype::Fp8 => fp8::decode(bytes[at]),
                KvDtype::Int8 => {
                    // A head's codes, then its scales.
                    let head = (dim + size_of::<f32>()) * size * (i / (size * dim));
                    let code = bytes[head + at % (size * dim)].cast_signed();
                    let scale = (head + size * dim) / size_of::<f32>() + i / dim % size;
                    f32::from(code) * floats[scale]
                }
            };
        }
        self.layers[layer].insert(block, block_keys);
    }

    /// Returns the keys of a sequence's first `len` tokens, `[num_kv_heads, len, head_dim]`.
    pub(super) fn keys(&self, layer: usize, table: &[u32], len: usize) -> Vec<f32> {
        let s = &self.shape;
        let (heads, size, dim) = (s.num_kv_heads as usize, s.block_size as usize, s.head_dim as usize);
        let mut keys = Vec::with_capacity(heads * len * dim);
        for head in 0..heads {
            for first in (0..len).step_by(size) {
                let block_keys = &self.layers[layer][&table[first / size]];
                let tokens = size.min(len - first);
                keys.extend_from_slice(&block_keys[head * size * dim..][..tokens * dim]);
            }
        }
        keys
    }
}
