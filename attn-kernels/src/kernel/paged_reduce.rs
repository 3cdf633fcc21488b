//! Merges the partitions of `paged_decode`.

use super::KvShape;
use super::attention::{Attention, Context};
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: partial, stats, rows, out; with lists also selected, with sinks then sinks.
pub static KERNEL: Kernel = Kernel {
    name: "paged_reduce",
    wgsl: include_str!("../../wgsl/paged_reduce.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<PagedReduceParams>(),
    bindings: BINDINGS.split_at(4).0,
};

const BINDINGS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Read, Access::Read];

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PagedReduceParams {
    /// Query heads.
    pub num_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// As `paged_decode` ran.
    pub max_partitions: u32,
    /// As `paged_decode` ran.
    pub list_stride: u32,
    /// As `paged_decode` ran.
    pub first_list: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

/// The kernel for one head size, after `paged_decode` of the same `attention`.
#[must_use]
pub fn variant(shape: &KvShape, attention: &Attention) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL).size("HEAD_DIM", shape.head_dim).constant("WG", 256);
    let variant = attention.order(variant, shape, 1);
    let listed = attention.context != Context::Full;
    if !attention.sinks {
        return variant.module("sinks", "sinks_none").bindings(BINDINGS.split_at(4 + usize::from(listed)).0);
    }
    let at = if listed { 6 } else { 5 };
    variant.module("sinks", "sinks_heads").size("SINKS", at).bindings(BINDINGS.split_at(at as usize).0)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(num_heads: u32, rows: u32) -> [u32; 3] {
    [num_heads, rows, 1]
}
