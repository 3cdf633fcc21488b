//! Merges the partitions of `paged_decode`.

use super::KvShape;
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: partial, stats, rows, out.
pub static KERNEL: Kernel = Kernel {
    name: "paged_reduce",
    wgsl: include_str!("../../wgsl/paged_reduce.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<PagedReduceParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PagedReduceParams {
    /// Query heads.
    pub num_heads: u32,
    /// As `paged_decode` ran.
    pub max_partitions: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

/// The kernel for one head size.
#[must_use]
pub fn variant(shape: &KvShape) -> Variant {
    shape.check();
    Variant::new(&KERNEL).size("HEAD_DIM", shape.head_dim).constant("WG", 128)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(num_heads: u32, rows: u32) -> [u32; 3] {
    [num_heads, rows, 1]
}
