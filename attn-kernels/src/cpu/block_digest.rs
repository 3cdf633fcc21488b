//! Reference of `block_digest`.

use half::f16;

use super::f32_of;
use crate::kernel::block_digest::{Digest, dtype};
use crate::kernel::{KvDtype, KvShape};
use crate::rows::BlockTokens;

/// Direction in which a digest is rounded if its type cannot represent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Down, for minima.
    Down,
    /// Up, for maxima.
    Up,
    /// To the nearest value, ties to even, for means. Results are at most the largest finite number.
    Nearest,
}

impl Rounding {
    /// Rounds `x` as digests of a cache of type `cache` are rounded. Bounds beyond the largest f16 become infinite.
    #[must_use]
    pub fn kept(self, cache: KvDtype, x: f32) -> f32 {
        if dtype(cache) == KvDtype::F32 {
            return x;
        }
        let nearest = f16::from_f32(x);
        let kept = match self {
            Self::Down if nearest.to_f32() > x => -above(-nearest),
            Self::Up if nearest.to_f32() < x => above(nearest),
            Self::Nearest => nearest.clamp(f16::MIN, f16::MAX),
            Self::Down | Self::Up => nearest,
        };
        kept.to_f32()
    }
}

/// Returns the smallest f16 above `x`.
fn above(x: f16) -> f16 {
    let bits = x.to_bits();
    f16::from_bits(if x.is_sign_negative() { bits - 1 } else { bits + 1 })
}

/// Computes the digests of the blocks `touched`, entries of (physical block, tokens), of the K cache `k`, and writes
/// their values to the pool `digests`.
pub fn block_digest(shape: &KvShape, digest: Digest, touched: &[[u32; 2]], k: &[f32], digests: &mut [f32]) {
    let (heads, head_dim) = (shape.num_kv_heads as usize, shape.head_dim as usize);
    let named = touched.iter().filter(|[block, _]| *block != BlockTokens::NONE.block);
    for [block, tokens] in named.map(|entry| entry.map(|n| n as usize)) {
        for head in 0..heads {
            let page = (block * heads + head) * digest.vectors() * head_dim;
            for dim in 0..head_dim {
                let values = (0..tokens).map(|t| k[shape.k_index(block, head, t, dim)]);
                match digest {
                    Digest::MinMax => {
                        let least = values.clone().fold(f32::INFINITY, f32::min);
                        let most = values.fold(f32::NEG_INFINITY, f32::max);
                        digests[page + dim] = Rounding::Down.kept(shape.dtype, least);
                        digests[page + head_dim + dim] = Rounding::Up.kept(shape.dtype, most);
                    }
                    Digest::Mean => digests[page + dim] = mean(shape.dtype, values.map(f64::from)),
                }
            }
        }
    }
}

/// Returns the mean of a block's keys in one channel, rounded as in its digest.
pub(super) fn mean(cache: KvDtype, keys: impl ExactSizeIterator<Item = f64>) -> f32 {
    let tokens = keys.len() as f64;
    Rounding::Nearest.kept(cache, f32_of(keys.sum::<f64>() / tokens))
}
