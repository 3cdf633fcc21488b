//! Attention of single query rows over their paged KV, in partitions.

use super::attention::{Attention, Context};
use super::error::Launch;
use super::{KvDtype, KvShape, LaunchError};
use crate::{Access, Kernel, Variant};
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

/// Keys that a workgroup attends at a time: partitions are multiples.
pub const TILE: u32 = 256;

/// Fewest keys of rows with partitions of 2 and 4 [`TILE`]s. Larger partitions leave less to merge; from these lengths on
/// a row of eight KV heads fills a GPU with them, alone.
const LARGER: [u32; 2] = [16_384, 32_768];

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
    /// First key of the dispatch in the order of attention, a multiple of the [`partition_of`] every row; 0 where it does all.
    pub first_key: u32,
    /// Keys of the dispatch, such a multiple too, or `u32::MAX` for all.
    pub num_keys: u32,
    /// Bound of scores with [`Logit::Softcap`](super::attention::Logit::Softcap).
    pub softcap: f32,
    /// Scale of keys in fp8.
    pub k_scale: f32,
    /// Scale of values in fp8.
    pub v_scale: f32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
    /// Zero.
    pub pad2: u32,
}

impl Default for PagedDecodeParams {
    /// All keys of a row in one partition that no reduction follows, no lists. Heads, stride and scale are to be set.
    fn default() -> Self {
        Self { max_partitions: 1, num_keys: u32::MAX, k_scale: 1.0, v_scale: 1.0, ..Self::zeroed() }
    }
}

/// Keys of a row that one workgroup attends, of the `keys` that the row sees: a power of two. The row alone decides: a size
/// that looked at the batch would make results depend on it.
#[must_use]
pub fn partition_of(keys: u32) -> u32 {
    LARGER.iter().filter(|fewest| keys >= **fewest).fold(TILE, |size, _| 2 * size)
}

/// The most partitions of a row that attends at most `keys`, from the first on.
#[must_use]
pub fn most_partitions(keys: u32) -> u32 {
    let longest = LARGER.iter().map(|fewest| fewest - 1).filter(|longest| *longest < keys);
    longest.chain([keys]).map(|keys| partitions(0, keys)).max().unwrap_or(0)
}

/// Partitions of a row that attends keys from index `begin` on of the `end` that it has, in the order of attention:
/// without lists, positions.
#[must_use]
pub fn partitions(begin: u32, end: u32) -> u32 {
    partitions_of(partition_of(end.saturating_sub(begin)), begin, end)
}

/// Partitions of `size` keys that hold keys from `begin` to before `end`.
pub(super) fn partitions_of(size: u32, begin: u32, end: u32) -> u32 {
    if begin < end { end.div_ceil(size) - begin / size } else { 0 }
}

/// Query heads that share one read of the cache: as many as fit, spread evenly over the fewest groups. Seven make two groups
/// of four, of which the second begins one head early.
#[must_use]
pub fn heads_a_group(shape: &KvShape, num_heads: u32) -> u32 {
    // Weights, queries and sums of 4 heads fit in WebGPU's workgroup memory up to heads of 256, of 2 up to 512.
    let most = if shape.head_dim > 256 { 2 } else { 4 };
    let of_kv_head = num_heads / shape.num_kv_heads;
    of_kv_head.div_ceil(of_kv_head.div_ceil(most))
}

/// The kernel for one cache shape and `num_heads` query heads. Every level runs this one: two passes over eight lanes' worth
/// of workgroup memory reduce faster than subgroups did on an H200 (563 us against 596 at 16 x 32,768).
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, attention: &Attention) -> Variant {
    shape.check();
    let module = match shape.dtype {
        KvDtype::F16 => "kv_f16",
        KvDtype::F32 => "kv_f32",
        KvDtype::Fp8 => "kv_fp8",
        KvDtype::Int8 => "kv_int8",
    };
    let tokens = attention.context == Context::Tokens;
    // Codes take more arithmetic a byte, beside which loads of two keys at once, and of several chunks, pay.
    let (keys, ahead) = match shape.dtype {
        KvDtype::F16 | KvDtype::F32 => ("keys_apart", 1),
        KvDtype::Fp8 | KvDtype::Int8 if tokens => ("keys_apart", chunks_ahead(shape.head_dim / 8)),
        KvDtype::Fp8 | KvDtype::Int8 => ("keys_paired", chunks_ahead(shape.head_dim / 8)),
    };
    let variant = Variant::new(&KERNEL)
        .module("kv", module)
        .size("HEAD_DIM", shape.head_dim)
        .size("BLOCK_SIZE", shape.block_size)
        .size("GROUP", heads_a_group(shape, num_heads))
        .module("keys", keys)
        .module("places", if tokens { "places_tokens" } else { "places_blocks" })
        .size("CHUNKS_AHEAD", ahead);
    attention.paged(attention.specialise(variant, shape, 1, BINDINGS))
}

/// Chunks of its keys that a lane loads at a time, of `chunks`.
fn chunks_ahead(chunks: u32) -> u32 {
    [4, 2].into_iter().find(|ahead| chunks.is_multiple_of(*ahead)).unwrap_or(1)
}

/// Groups of the query heads of a KV head.
fn groups(shape: &KvShape, num_heads: u32) -> u32 {
    (num_heads / shape.num_kv_heads).div_ceil(heads_a_group(shape, num_heads))
}

/// Workgroups for `rows` rows of `partitions` partitions each.
#[must_use]
pub fn grid(shape: &KvShape, num_heads: u32, rows: u32, partitions: u32) -> [u32; 3] {
    [partitions * groups(shape, num_heads), shape.num_kv_heads, rows]
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
    let groups = u64::from(groups(shape, params.num_heads));
    launch.at_most("partitions times groups of a KV head", most * groups, 65_535)?;
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
