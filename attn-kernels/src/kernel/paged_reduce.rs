//! Merges the partitions of `paged_decode`.

use super::attention::{Attention, Context};
use super::error::Launch;
use super::mla_decode::{self, MlaDecodeParams};
use super::paged_decode::PagedDecodeParams;
use super::{KvShape, LaunchError};
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
    /// As `paged_decode` ran; after `mla_decode` its [`PARTITION`](super::mla_decode::PARTITION).
    pub partition_size: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

impl From<&PagedDecodeParams> for PagedReduceParams {
    /// Of the pass behind a `paged_decode` of these.
    fn from(decode: &PagedDecodeParams) -> Self {
        let PagedDecodeParams {
            num_heads,
            num_kv_heads,
            max_partitions,
            partition_size,
            list_stride,
            first_list,
            ..
        } = *decode;
        Self {
            num_heads,
            num_kv_heads,
            max_partitions,
            list_stride,
            first_list,
            partition_size,
            pad0: 0,
            pad1: 0,
        }
    }
}

impl From<&MlaDecodeParams> for PagedReduceParams {
    /// Of the pass behind an `mla_decode` of these, whose heads share the latents.
    fn from(decode: &MlaDecodeParams) -> Self {
        let MlaDecodeParams { num_heads, max_partitions, list_stride, first_list, .. } = *decode;
        let partition_size = mla_decode::PARTITION;
        Self {
            num_heads,
            num_kv_heads: 1,
            max_partitions,
            list_stride,
            first_list,
            partition_size,
            pad0: 0,
            pad1: 0,
        }
    }
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

/// Checks `rows`, those of the decode before it, against buffers of `partial_len`, `stats_len` and `out_len` elements, and of
/// `sinks_len` f32 with sinks. How many partitions a row has is checked there.
///
/// # Errors
/// A shape that no kernel takes, more rows than a dispatch has, or a row outside a buffer.
pub fn check(
    head_dim: u32,
    params: &PagedReduceParams,
    rows: &[[u32; 4]],
    [partial_len, stats_len, out_len]: [usize; 3],
    sinks_len: Option<usize>,
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    for (what, size) in [("head size", head_dim), ("KV heads", params.num_kv_heads)] {
        launch.not_zero(what, size)?;
    }
    launch.multiple("head size", head_dim, 8)?;
    launch.multiple("query heads", params.num_heads, params.num_kv_heads)?;
    launch.at_most("rows", rows.len() as u64, 65_535)?;
    launch.not_zero("keys of a partition", params.partition_size)?;
    let heads = u64::from(params.num_heads);
    let stats = rows.len() as u64 * heads * u64::from(params.max_partitions);
    launch.at_most("entries of stats", stats, stats_len as u64)?;
    launch.at_most("f32 of partials", stats * u64::from(head_dim), partial_len as u64)?;
    launch.at_most("f32 of sinks", heads, sinks_len.map_or(u64::MAX, |len| len as u64))?;
    for (entry, [row, ..]) in rows.iter().enumerate() {
        let end = (u64::from(*row) + 1) * heads * u64::from(head_dim);
        launch.entry("end in the output", entry, end, out_len as u64)?;
    }
    Ok(())
}
