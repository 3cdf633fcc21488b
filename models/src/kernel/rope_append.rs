//! Rotary position embedding of queries and keys, with keys and values written to the cache.

use attn_kernels::kernel::{KvDtype, KvShape, flat_grid};
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: qkv, slots, k_cache, v_cache, cs, q.
pub static KERNEL: Kernel = Kernel {
    name: "rope_append",
    wgsl: include_str!("../../wgsl/rope_append.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<RopeAppendParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write, Access::Write, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RopeAppendParams {
    /// Rows.
    pub rows: u32,
    /// Query heads.
    pub num_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Pairs of dimensions to turn in each head.
    pub pairs: u32,
}

const WG: u32 = 64;

/// The kernel for one cache shape and pairing.
#[must_use]
pub fn variant(shape: &KvShape, interleaved: bool) -> Variant {
    let module = match shape.dtype {
        KvDtype::F16 => "kv_write_f16",
        KvDtype::F32 => "kv_write_f32",
        KvDtype::Fp8 => "kv_write_fp8",
        KvDtype::Int8 => "kv_write_int8",
    };
    Variant::new(&KERNEL)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", shape.block_size)
        .size("INTERLEAVED", u32::from(interleaved))
        .module("kv", module)
        .constant("WG", WG)
}

/// Workgroups for `rows` rows of `num_heads` query heads.
#[must_use]
pub fn grid(shape: &KvShape, num_heads: u32, rows: u32) -> [u32; 3] {
    let heads = num_heads + 2 * shape.num_kv_heads;
    flat_grid((rows * heads * (shape.head_dim / 8)).div_ceil(WG))
}
