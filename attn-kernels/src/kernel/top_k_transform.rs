//! Positions of a top-k as slots, where the two are not fused.

use super::top_k::Transform;
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: rows, table, out.
pub static KERNEL: Kernel = Kernel {
    name: "top_k_transform",
    wgsl: include_str!("../../wgsl/top_k_transform.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<TopKTransformParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TopKTransformParams {
    /// Rows.
    pub rows: u32,
    /// Positions a row.
    pub out_stride: u32,
    /// Tokens of a page; 1 makes the table one of slots.
    pub page_size: u32,
    /// Zero.
    pub pad0: u32,
}

/// The kernel for one transform.
#[must_use]
pub fn variant(transform: Transform) -> Variant {
    Variant::new(&KERNEL).module("transform", transform.module())
}

/// Workgroups for `rows` rows of `out_stride` positions.
#[must_use]
pub fn grid(rows: u32, out_stride: u32) -> [u32; 3] {
    super::flat_grid((rows * out_stride).div_ceil(256))
}
