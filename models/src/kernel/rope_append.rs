//! Rotary position embedding of queries and keys, with keys and values written to the cache.

use attn_kernels::kernel::{KvDtype, KvShape, flat_grid};
use attn_kernels::rows::{Angle, KvWord};
use attn_kernels::{Kernel, Params, Variant, bindings, params};

use crate::Pairing;

/// The kernel; [`RopeAppendBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "rope_append",
    role: attn_kernels::Role::Cache,
    wgsl: include_str!("../../wgsl/rope_append.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: RopeAppendParams::LAYOUT,
    bindings: RopeAppendBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
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
}

bindings! {
    /// Buffers of `rope_append`.
    pub struct RopeAppendBuffers(RopeAppendParams) {
        /// Queries, keys and values of each row, `[rows, num_heads + 2 * num_kv_heads, head_dim]`.
        read qkv: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Cache of keys, in the layout of `KvShape`.
        write k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        write v_cache: KvWord,
        /// Angles of each row, `[rows, pairs]`, then a factor on each row's queries, `[rows]`.
        read cs: Angle,
        /// Rotated queries, `[rows, num_heads, head_dim]`.
        write q: f32,
    }
}

const WG: u32 = 64;

/// The kernel for one cache shape and pairing.
#[must_use]
pub fn variant(shape: &KvShape, pairing: Pairing) -> Variant {
    let module = match shape.dtype {
        KvDtype::F16 => "kv_write_f16",
        KvDtype::F32 => "kv_write_f32",
        KvDtype::Fp8 => "kv_write_fp8",
        KvDtype::Int8 => "kv_write_int8",
    };
    Variant::new(&KERNEL)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", shape.block_size)
        .size("INTERLEAVED", u32::from(pairing == Pairing::Interleaved))
        .module("kv", module)
        .constant("WG", WG)
}

/// Workgroups for `rows` rows of `num_heads` query heads.
#[must_use]
pub fn grid(shape: &KvShape, num_heads: u32, rows: u32) -> [u32; 3] {
    let heads = num_heads + 2 * shape.num_kv_heads;
    flat_grid((rows * heads * (shape.head_dim / 8)).div_ceil(WG))
}
