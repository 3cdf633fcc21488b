//! Rows after an RMS norm, rounded to f16: the activations of [`matmul_coop`](super::matmul_coop).

use attn_kernels::{Kernel, Level, Params, Variant, bindings, params};

/// The kernel; [`NormHalvesBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "norm_halves",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/norm_halves.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: NormHalvesParams::LAYOUT,
    bindings: NormHalvesBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct NormHalvesParams {
        /// Rows.
        pub rows: u32,
        /// vec4 in a row.
        pub quads: u32,
        /// Added to the mean square.
        pub eps: f32,
    }
}

bindings! {
    /// Buffers of `norm_halves`.
    pub struct NormHalvesBuffers(NormHalvesParams) {
        /// Rows, `[rows, 4 * quads]`.
        read x: f32,
        /// Weight of the norm, `[4 * quads]`.
        read weight: f32,
        /// Normed rows in f16, two to a word, `[rows, 4 * quads]`.
        write halves: [u32; 2],
    }
}

/// The kernel.
#[must_use]
pub fn variant(level: Level) -> Variant {
    Variant::new(&KERNEL).size("WG", 256).reduce(level)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}
