//! Rotary position embedding, in place.

use attn_kernels::kernel::flat_grid;
use attn_kernels::rows::Angle;
use attn_kernels::{Kernel, Params, Variant, bindings, params};

use crate::Pairing;

/// The kernel; [`RopeBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "rope",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/rope.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: RopeParams::LAYOUT,
    bindings: RopeBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct RopeParams {
        /// Rows.
        pub rows: u32,
        /// Heads to turn: queries, then keys.
        pub heads: u32,
        /// f32 from row to row.
        pub stride: u32,
        /// Pairs of dimensions to turn in each head.
        pub pairs: u32,
        /// First dimension to turn of the first head of a row.
        pub first: u32,
        /// 1 to turn the other way, which undoes it.
        pub back: u32,
    }
}

bindings! {
    /// Buffers of `rope`.
    pub struct RopeBuffers(RopeParams) {
        /// Angles of each row, `[rows, pairs]`, made on the host in double precision.
        read cs: Angle,
        /// Rows of `stride` f32 with `heads` heads, which rotate from dimension `first` on.
        write x: f32,
    }
}

const WG: u32 = 64;

/// The kernel for one head size and pairing.
#[must_use]
pub fn variant(head_dim: u32, pairing: Pairing) -> Variant {
    Variant::new(&KERNEL)
        .size("HEAD_DIM", head_dim)
        .size("INTERLEAVED", u32::from(pairing == Pairing::Interleaved))
        .constant("WG", WG)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32, heads: u32, pairs: u32) -> [u32; 3] {
    flat_grid((rows * heads * pairs).div_ceil(WG))
}
