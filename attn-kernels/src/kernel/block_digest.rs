//! Digests of the keys of pages, updated where a step wrote: what block scores are computed from.

use super::error::Launch;
use super::{KvShape, LaunchError};
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: touched, k_cache, digests.
pub static KERNEL: Kernel = Kernel {
    name: "block_digest",
    wgsl: include_str!("../../wgsl/block_digest.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<BlockDigestParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// What is kept of the keys of a page and KV head, in f32. The pool is `[num_blocks, num_kv_heads, vectors, head_dim]`,
/// indexed by physical block like the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Digest {
    /// Channelwise minimum, then maximum (Quest, arXiv 2406.10774).
    MinMax,
    /// Channelwise mean (GSA and ESA of UCM).
    Mean,
}

impl Digest {
    /// Vectors of `head_dim` elements a page and KV head.
    #[must_use]
    pub fn vectors(self) -> usize {
        match self {
            Self::MinMax => 2,
            Self::Mean => 1,
        }
    }

    /// f32 of the pool for a cache of `num_blocks` pages.
    #[must_use]
    pub fn pool_len(self, shape: &KvShape, num_blocks: usize) -> usize {
        num_blocks * shape.num_kv_heads as usize * self.vectors() * shape.head_dim as usize
    }
}

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockDigestParams {
    /// KV heads.
    pub num_kv_heads: u32,
    /// Pages to digest.
    pub touched: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

/// The kernel for one cache shape.
#[must_use]
pub fn variant(shape: &KvShape, digest: Digest) -> Variant {
    shape.check();
    let keys = shape.dtype.keys();
    let digest = match digest {
        Digest::MinMax => "digest_min_max",
        Digest::Mean => "digest_mean",
    };
    Variant::new(&KERNEL)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", shape.block_size)
        .module("k", keys)
        .module("digest", digest)
}

/// Workgroups for `touched` pages.
#[must_use]
pub fn grid(shape: &KvShape, touched: u32) -> [u32; 3] {
    let [y, z, _] = super::flat_grid(touched);
    [(shape.num_kv_heads * (shape.head_dim / 8)).div_ceil(8), y, z]
}

/// Checks `touched`, entries of (physical block, tokens), against a cache of `num_blocks` pages. A page may be named
/// once in a dispatch.
///
/// # Errors
/// A block outside the cache, or tokens that are none or more than a page holds.
pub fn check(shape: &KvShape, touched: &[[u32; 2]], num_blocks: u32) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    for (entry, [block, tokens]) in touched.iter().enumerate() {
        launch.entry("block + 1", entry, u64::from(*block) + 1, num_blocks.into())?;
        launch.entry("tokens", entry, (*tokens).into(), shape.block_size.into())?;
        launch.not_zero("tokens of an entry", *tokens)?;
    }
    Ok(())
}
