//! Attention of single query rows over their paged KV, in partitions.

use super::attention::Attention;
use super::error::Launch;
use super::{KvDtype, KvShape, LaunchError, heads_together};
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
    attention.paged(attention.specialise(variant, shape, 1, BINDINGS))
}

/// Workgroups for `rows` rows of `partitions` partitions each.
#[must_use]
pub fn grid(shape: &KvShape, num_heads: u32, rows: u32, partitions: u32) -> [u32; 3] {
    [partitions, num_heads / heads_a_group(shape, num_heads), rows]
}

/// Checks `rows`, `[row of q, keys, first entry of the block table, first key]`, and the blocks of `tables` that they read,
/// against a cache of `num_blocks` blocks and buffers of `q_len`, `partial_len` and `stats_len` elements. Lists have
/// [`check_lists`](super::attention::check_lists).
///
/// # Errors
/// A shape that no kernel takes, more rows than a dispatch has, a row outside a buffer, a table that names no block of the
/// cache, or more partitions than there is room for.
pub fn check(
    shape: &KvShape,
    params: &PagedDecodeParams,
    rows: &[[u32; 4]],
    (tables, num_blocks): (&[u32], u32),
    [q_len, partial_len, stats_len]: [usize; 3],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    shape.validate(params.num_heads)?;
    launch.at_most("rows", rows.len() as u64, 65_535)?;
    let width = u64::from(params.num_heads) * u64::from(shape.head_dim);
    let most = u64::from(params.max_partitions);
    if params.reduced == 0 {
        launch.at_most("partitions without a reduce pass", most, 1)?;
    } else {
        let stats = rows.len() as u64 * u64::from(params.num_heads) * most;
        launch.at_most("entries of stats", stats, stats_len as u64)?;
        launch.at_most("f32 of partials", stats * u64::from(shape.head_dim), partial_len as u64)?;
    }
    for (entry, [row, len, table, first]) in rows.iter().enumerate() {
        let end = u64::from(*row) * u64::from(params.q_stride) + width;
        launch.entry("end in q", entry, end, q_len as u64)?;
        if params.reduced == 0 {
            launch.entry("end in the output", entry, (u64::from(*row) + 1) * width, partial_len as u64)?;
        }
        launch.entry("first key", entry, (*first).into(), (*len).into())?;
        if params.list_stride == 0 {
            launch.entry("partitions", entry, partitions(*first, *len).into(), most)?;
        }
        let (first, end) = (first / shape.block_size, len.div_ceil(shape.block_size));
        let of_table = [first, end].map(|block| u64::from(*table) + u64::from(block));
        launch.table(entry, tables, (of_table[0], of_table[1]), num_blocks)?;
    }
    Ok(())
}
