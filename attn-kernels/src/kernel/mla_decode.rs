//! Absorbed multi-head latent attention of query rows, over one cache or two.

use super::attention::{Attention, Context};
use super::{KvDtype, KvShape, heads_together, paged_decode, paged_reduce};
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: q, latents, tables, rows, partial, stats; with lists also selected. Over two caches: q, latents,
/// compressed, rows, partial, stats, window_slots, compressed_slots.
pub static KERNEL: Kernel = Kernel {
    name: "mla_decode",
    wgsl: include_str!("../../wgsl/mla_decode.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<MlaDecodeParams>(),
    bindings: BINDINGS.split_at(6).0,
};

pub(super) const BINDINGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Read,
    Access::Read,
];

/// Bindings over one cache with lists.
pub(super) const LISTED: &[Access] = BINDINGS.split_at(7).0;

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MlaDecodeParams {
    /// Query heads.
    pub num_heads: u32,
    /// f32 from one query row to the next, a multiple of 4.
    pub q_stride: u32,
    /// Most partitions of a row: see [`partitions`].
    pub max_partitions: u32,
    /// 1 where `paged_reduce` follows; 0 where one partition is the whole and nothing has sinks, so that `partial` is
    /// the output.
    pub reduced: u32,
    /// Factor on scores, usually one over the root of the head size before absorption.
    pub scale: f32,
    /// Entries from one list of selected blocks, or of slots of the window, to the next.
    pub list_stride: u32,
    /// Row whose lists are those of the dispatch's first row.
    pub first_list: u32,
    /// Entries from one list of compressed slots to the next.
    pub compressed_stride: u32,
}

/// Shape of a cache of latents `[num_blocks, block_size, latent + rope]`; behind the codes of a token in 8 bits are two f32
/// scales, of the latent and of the rope part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LatentShape {
    /// Elements of a value, the first of the key: a multiple of 8 up to 512.
    pub latent: u32,
    /// Further elements of a key, a multiple of 8; may be 0.
    pub rope: u32,
    /// Tokens a block, a power of two.
    pub block_size: u32,
    /// Element type.
    pub dtype: KvDtype,
}

impl LatentShape {
    /// Elements a token.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.latent + self.rope
    }

    /// Bytes a token: of codes also two f32 scales, of the latent and of the rope part.
    #[must_use]
    pub fn token_bytes(&self) -> usize {
        let scales =
            if matches!(self.dtype, KvDtype::Fp8 | KvDtype::Int8) { 2 * size_of::<f32>() } else { 0 };
        self.width() as usize * self.dtype.bytes() + scales
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_size as usize * self.token_bytes()
    }

    /// What `paged_reduce` takes for the shape of the cache.
    #[must_use]
    pub fn values(&self) -> KvShape {
        let Self { latent, block_size, dtype, .. } = *self;
        KvShape { num_kv_heads: 1, head_dim: latent, block_size, dtype }
    }

    /// What kernels rely on.
    ///
    /// # Panics
    /// Where it does not hold.
    pub(super) fn check(&self) {
        self.values().check();
        let Self { latent, rope, .. } = *self;
        assert!((8..=512).contains(&latent), "latents of {latent} elements, of 8 to 512");
        assert!(
            rope.is_multiple_of(8) && rope <= 64,
            "{rope} rope elements are not a multiple of 8 up to 64"
        );
    }
}

/// Keys a workgroup attends.
pub const PARTITION: u32 = 256;

/// Partitions of a row that attends keys from index `begin` on of the `end` that it has, in the order of attention.
#[must_use]
pub fn partitions(begin: u32, end: u32) -> u32 {
    paged_decode::partitions_of(PARTITION, begin, end)
}

/// The `paged_reduce` that merges them.
#[must_use]
pub fn reduce_variant(shape: &LatentShape, attention: &Attention) -> Variant {
    paged_reduce::variant(&shape.values(), attention).module("partition", "partition_fixed")
}

/// Query heads that share one read of the cache.
#[must_use]
pub fn heads_a_group(num_heads: u32) -> u32 {
    heads_together(num_heads, 16)
}

/// The kernel over one cache of `shape` and `num_heads` query heads. Of `attention` the context counts; heads share
/// their lists.
#[must_use]
pub fn variant(shape: &LatentShape, num_heads: u32, attention: &Attention) -> Variant {
    let variant = attention.order(of(shape, num_heads), &shape.values(), 1);
    if attention.context == Context::Full { variant } else { variant.bindings(LISTED) }
}

/// The kernel over a window cache and a compressed cache of `shape`, by lists of slots.
#[must_use]
pub fn variant_of_two(shape: &LatentShape, num_heads: u32) -> Variant {
    of(shape, num_heads).module("latents", "latents_two").bindings(BINDINGS)
}

fn of(shape: &LatentShape, num_heads: u32) -> Variant {
    shape.check();
    // What is staged stays below 10 KiB.
    let tokens = if shape.dtype == KvDtype::F32 { 4 } else { 8 };
    let element = match shape.dtype {
        KvDtype::F16 => "latent_f16",
        KvDtype::F32 => "latent_f32",
        KvDtype::Fp8 => "latent_fp8",
        KvDtype::Int8 => "latent_int8",
    };
    Variant::new(&KERNEL)
        .size("LATENT", shape.latent)
        .size("ROPE", shape.rope)
        .size("BLOCK_SIZE", shape.block_size)
        .size("HEADS", heads_a_group(num_heads))
        .size("TOKENS", tokens)
        .module("element", element)
}

/// Workgroups for `rows` rows of at most `max_partitions` partitions.
#[must_use]
pub fn grid(num_heads: u32, rows: u32, max_partitions: u32) -> [u32; 3] {
    [max_partitions, num_heads / heads_a_group(num_heads), rows]
}
