//! Residual streams into what a block reads, and the gates of what it leaves (hyper-connections).

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: mixes, streams, affine, out, gates, block.
pub static KERNEL: Kernel = Kernel {
    name: "hyper_collapse",
    wgsl: include_str!("../../wgsl/hyper_collapse.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<HyperCollapseParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Write, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct HyperCollapseParams {
    /// Rows.
    pub rows: u32,
    /// f32 of one stream of a row.
    pub width: u32,
    /// Rounds of Sinkhorn-Knopp; the first is of columns alone.
    pub rounds: u32,
    /// Of the norm over all streams of a row.
    pub norm_eps: f32,
    /// Added to the weights of streams, and to what divides them.
    pub eps: f32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

/// Lanes a row.
const LANES: u32 = 64;

/// Numbers that a row is mixed by: a weight of each stream, and where a block follows a gate of each and of each pair.
#[must_use]
pub fn mixes(streams: u32, head: bool) -> u32 {
    if head { streams } else { streams * (2 + streams) }
}

/// The kernel for so many streams; `head`: no block follows, the streams end here.
#[must_use]
pub fn variant(streams: u32, head: bool, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .size("STREAMS", streams)
        .size("HEAD", u32::from(head))
        .size("WG", LANES)
        .module("reduce", if level == Level::Baseline { "reduce_tree" } else { "reduce_subgroup" })
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    flat_grid(rows)
}
