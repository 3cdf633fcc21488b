//! RMS or layer norm of parts of rows, in place: query and key heads, latents.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Kernel, Level, Params, Variant, bindings, params};

/// The kernel; [`NormHeadsBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "norm_heads",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/norm_heads.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: NormHeadsParams::LAYOUT,
    bindings: NormHeadsBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct NormHeadsParams {
        /// Rows.
        pub rows: u32,
        /// Runs in each row.
        pub heads: u32,
        /// Elements of a run.
        pub width: u32,
        /// f32 from row to row.
        pub stride: u32,
        /// First element of the first run of a row.
        pub first: u32,
        /// Added to the mean square.
        pub eps: f32,
    }
}

bindings! {
    /// Buffers of `norm_heads`.
    pub struct NormHeadsBuffers(NormHeadsParams) {
        /// Weight of the norm, `[width]`; of a layer norm its factors, then its addends.
        read weight: f32,
        /// Rows of `stride` f32 with runs one after the other from `first` on.
        write x: f32,
    }
}

/// Lanes a run.
const LANES: u32 = 64;

/// Kinds of norms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norm {
    /// RMS norm.
    Rms,
    /// Layer norm, which subtracts the mean first.
    Layer,
}

/// The kernel for one kind of norm.
#[must_use]
pub fn variant(norm: Norm, level: Level) -> Variant {
    Variant::new(&KERNEL).size("CENTRED", u32::from(norm == Norm::Layer)).size("WG", LANES).reduce(level)
}

/// Workgroups for `rows` rows of `heads` runs.
#[must_use]
pub fn grid(rows: u32, heads: u32) -> [u32; 3] {
    flat_grid(rows * heads)
}
