//! Attention of single query rows over their paged KV, in partitions.

use super::attention::Attention;
use super::{KvDtype, KvShape, heads_together};
use crate::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: q, k_cache, v_cache, tables, rows, partial, stats; with lists also selected, with ALiBi slopes.
pub static KERNEL: Kernel = Kernel {
    name: "paged_decode",
    wgsl: include_str!("../../wgsl/paged_decode.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<PagedDecodeParams>(),
    bindings: BINDINGS.split_at(7).0,
};

const BINDINGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Read,
];

/// Keys a workgroup attends. Fixed: a partition size that looked at the batch would make results depend on it.
pub const PARTITION: u32 = 256;

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PagedDecodeParams {
    /// Query heads.
    pub num_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// f32 from one query row to the next.
    pub q_stride: u32,
    /// Most partitions of a row: see [`partitions`].
    pub max_partitions: u32,
    /// Factor on scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// 1 where `paged_reduce` follows; 0 where one partition is the whole and nothing has sinks, so that `partial` is
    /// the output.
    pub reduced: u32,
    /// Entries from one list of selected blocks to the next.
    pub list_stride: u32,
    /// Row whose lists are those of the dispatch's first row.
    pub first_list: u32,
    /// Bound of scores with [`Logit::Softcap`](super::attention::Logit::Softcap).
    pub softcap: f32,
    /// First partition of the dispatch, counted as [`partitions`] does; 0 where it does all.
    pub first_partition: u32,
    /// Scale of keys in fp8.
    pub k_scale: f32,
    /// Scale of values in fp8.
    pub v_scale: f32,
}

/// Partitions of a row that attends keys from index `begin` on of the `end` that it has, in the order of attention:
/// without lists, positions.
#[must_use]
pub fn partitions(begin: u32, end: u32) -> u32 {
    if begin < end { end.div_ceil(PARTITION) - begin / PARTITION } else { 0 }
}

/// Query heads that share one read of the cache.
#[must_use]
pub fn heads_a_group(shape: &KvShape, num_heads: u32) -> u32 {
    // Scores, queries and sums of 4 heads fit in WebGPU's workgroup memory up to heads of 256, of 2 up to 512.
    heads_together(num_heads / shape.num_kv_heads, if shape.head_dim > 256 { 2 } else { 4 })
}

/// The kernel for one cache shape and `num_heads` query heads; subgroups shorten the reductions of four heads.
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, level: Level, attention: &Attention) -> Variant {
    shape.check();
    let module = match shape.dtype {
        KvDtype::F16 => "kv_f16",
        KvDtype::F32 => "kv_f32",
        KvDtype::Fp8 => "kv_fp8",
        KvDtype::Int8 => "kv_int8",
    };
    let group = heads_a_group(shape, num_heads);
    // With three heads a lane an NVIDIA driver keeps its scores in memory beside subgroup reductions: 95 us against 46
    // at 64 x 1,024 tokens, 9/3 heads. Of other numbers than four nothing is measured, and trees are even everywhere.
    let by_subgroups = level != Level::Baseline && group == 4;
    let variant = Variant::new(&KERNEL)
        .module("kv", module)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", shape.block_size)
        .size("GROUP", group)
        .module("reduce", if by_subgroups { "reduce_subgroup" } else { "reduce_tree" });
    attention.specialise(variant, shape, 1, BINDINGS)
}

/// Workgroups for `rows` rows of `partitions` partitions each.
#[must_use]
pub fn grid(shape: &KvShape, num_heads: u32, rows: u32, partitions: u32) -> [u32; 3] {
    [partitions, num_heads / heads_a_group(shape, num_heads), rows]
}
