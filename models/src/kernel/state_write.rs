//! States of a compressor into their paged cache.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: x, slots, states.
pub static KERNEL: Kernel = Kernel {
    name: "state_write",
    wgsl: include_str!("../../wgsl/state_write.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<StateWriteParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct StateWriteParams {
    /// Rows.
    pub rows: u32,
    /// Fours of f32 of a row.
    pub quads: u32,
    /// Tokens a block.
    pub block_size: u32,
    /// Fours of f32 from block to block.
    pub page: u32,
}

const WG: u32 = 64;

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}

/// Workgroups for `rows` rows of `quads` fours.
#[must_use]
pub fn grid(rows: u32, quads: u32) -> [u32; 3] {
    flat_grid((rows * quads).div_ceil(WG))
}
