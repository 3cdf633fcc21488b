//! CPU references: the textbook formula of each kernel, computed in f64 on slices.
//!
//! One module a kernel, of the same stem as its `.wgsl` file, with the kernel's bindings in their order as arguments.
//! The loops are not the kernel's: a reference is what the kernel means. Device caches are given as values, in the
//! layout of [`KvShape`].

pub mod apply_sinks;
pub mod attend_means;
pub mod attention;
pub mod block_digest;
pub mod block_energy;
pub mod block_lse;
pub mod block_mean;
pub mod block_means;
pub mod block_score;
pub mod cache_write;
pub mod copy_blocks;
pub mod dequantise;
pub mod fetch_pages;
pub mod find_blocks;
pub mod gate_sum;
pub mod gather_cache;
pub mod hamming_score;
pub mod hash_codes;
pub mod index_logits;
pub mod keep_blocks;
pub mod keep_lists;
pub mod latent_write;
pub mod list_counts;
pub mod lse_merge;
pub mod masked_attention;
pub mod mass_bound;
pub mod mass_cut;
pub mod mass_merge;
pub mod mla_decode;
pub mod nsa_attend;
pub mod nsa_block_score;
pub mod nsa_probs;
pub mod paged_decode;
pub mod paged_prefill;
pub mod paged_reduce;
pub mod prefill_reduce;
pub mod prefix_slots;
pub mod quantise;
pub mod residency;
pub mod softmax_block_sum;
pub mod stride_queries;
pub mod strided_qk;
pub mod swap_blocks;
mod tolerance;
pub mod top_k;
pub mod top_k_long;
pub mod top_k_peaks;
pub mod top_k_transform;
pub mod v4_compress;
pub mod vote_blocks;

pub use tolerance::{Mismatch, Tolerance};

use crate::kernel::KvShape;

/// A paged KV cache on the host: its elements as f32, in the layout of the device.
#[derive(Clone, Copy, Debug)]
pub struct PagedKv<'a> {
    /// Shape of K and of V.
    pub shape: KvShape,
    /// K `[num_blocks, num_kv_heads, head_dim / x, block_size, x]`.
    pub k: &'a [f32],
    /// V `[num_blocks, num_kv_heads, block_size, head_dim]`.
    pub v: &'a [f32],
}

impl PagedKv<'_> {
    /// Returns the key of `token` (a position in its sequence) for a KV head, through the sequence's block table.
    pub fn key(&self, table: &[u32], head: usize, token: usize) -> impl Iterator<Item = f64> {
        self.gather(self.k, KvShape::k_index, table, head, token)
    }

    /// Returns the value of `token` for a KV head, through the sequence's block table.
    pub fn value(&self, table: &[u32], head: usize, token: usize) -> impl Iterator<Item = f64> {
        self.gather(self.v, KvShape::v_index, table, head, token)
    }

    /// Calls `of` for each query head and each block, with the query and the keys of the block, and returns the
    /// results `[rows, num_heads, stride]`. Blocks beyond the sequence have no keys. A row is `[row of q, KV length,
    /// first entry of its table, any]`; a block has `select_block` tokens.
    pub(crate) fn of_blocks(
        &self,
        select_block: usize,
        [heads, kv_heads, q_stride, stride]: [u32; 4],
        (q, tables, rows): (&[f32], &[u32], &[[u32; 4]]),
        of: impl Fn(&[f32], &[Vec<f64>]) -> f64,
    ) -> Vec<f32> {
        let (dim, group) = (self.shape.head_dim as usize, (heads / kv_heads) as usize);
        let mut all = Vec::new();
        for [row, len, table, _] in rows.iter().map(|row| row.map(|n| n as usize)) {
            for head in 0..heads as usize {
                let q = &q[row * q_stride as usize + head * dim..][..dim];
                all.extend((0..stride as usize).map(|block| {
                    let tokens = block * select_block..len.min((block + 1) * select_block);
                    let keys = tokens.map(|t| self.key(&tables[table..], head / group, t).collect());
                    f32_of(of(q, &keys.collect::<Vec<Vec<f64>>>()))
                }));
            }
        }
        all
    }

    fn gather(
        &self,
        cache: &[f32],
        index: fn(&KvShape, usize, usize, usize, usize) -> usize,
        table: &[u32],
        head: usize,
        token: usize,
    ) -> impl Iterator<Item = f64> {
        let block_size = self.shape.block_size as usize;
        let (block, offset) = (table[token / block_size] as usize, token % block_size);
        (0..self.shape.head_dim as usize)
            .map(move |d| f64::from(cache[index(&self.shape, block, head, offset, d)]))
    }
}

/// Rounds a result to f32.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
pub(crate) fn f32_of(x: f64) -> f32 {
    x as f32
}
