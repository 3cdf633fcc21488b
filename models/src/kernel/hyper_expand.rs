//! What a block made of a row, back into its residual streams (hyper-connections).

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: block, gates, streams.
pub static KERNEL: Kernel = Kernel {
    name: "hyper_expand",
    wgsl: include_str!("../../wgsl/hyper_expand.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<HyperExpandParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct HyperExpandParams {
    /// Rows.
    pub rows: u32,
    /// f32 of one stream of a row.
    pub width: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

const WG: u32 = 64;

/// The kernel for so many streams; `first`: they begin here, all alike.
#[must_use]
pub fn variant(streams: u32, first: bool) -> Variant {
    Variant::new(&KERNEL).size("STREAMS", streams).size("FIRST", u32::from(first)).constant("WG", WG)
}

/// Workgroups for `rows` rows of `width` elements a stream.
#[must_use]
pub fn grid(rows: u32, width: u32) -> [u32; 3] {
    flat_grid((rows * width).div_ceil(WG))
}
