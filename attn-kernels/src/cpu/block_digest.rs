//! Reference of `block_digest`.

use super::f32_of;
use crate::kernel::KvShape;
use crate::kernel::block_digest::Digest;

/// Digests of the pages `touched`, (physical block, tokens), of the K cache `k` into the pool `digests`.
pub fn block_digest(shape: &KvShape, digest: Digest, touched: &[[u32; 2]], k: &[f32], digests: &mut [f32]) {
    let (heads, head_dim) = (shape.num_kv_heads as usize, shape.head_dim as usize);
    for [block, tokens] in touched.iter().map(|entry| entry.map(|n| n as usize)) {
        for head in 0..heads {
            let page = (block * heads + head) * digest.vectors() * head_dim;
            for dim in 0..head_dim {
                let values = (0..tokens).map(|t| k[shape.k_index(block, head, t, dim)]);
                match digest {
                    Digest::MinMax => {
                        digests[page + dim] = values.clone().fold(f32::INFINITY, f32::min);
                        digests[page + head_dim + dim] = values.fold(f32::NEG_INFINITY, f32::max);
                    }
                    Digest::Mean => {
                        let sum: f64 = values.map(f64::from).sum();
                        digests[page + dim] = f32_of(sum / tokens as f64);
                    }
                }
            }
        }
    }
}
