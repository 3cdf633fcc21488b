//! Attention of single query rows over their paged KV, in partitions.

use super::attention::{Attention, Context};
use super::error::Launch;
use super::{KvDtype, KvLayout, KvShape, LaunchError, paged_decode_coop, paged_decode_subgroup};
use crate::declare::{Listed, Sizes};
use crate::profile::{DeviceProfile, Registers};
use crate::rows::{DecodeRow, KvWord, PhysicalBlock};
use crate::slot::{self, OneOf};
use crate::{Level, Variant};

kernel! {
    /// The kernel; [`PagedDecodeBuffers`] lists its bindings.
    "paged_decode"(PagedDecodeParams, PagedDecodeBuffers): Attention,
    grid: grid,
    listed: |sizes| listed_by(sizes, |_| vec![Lanes::Workgroup]),
    variants: "f16, f32, fp8, int8; all keys, listed blocks or listed tokens; scores plain, soft-capped or with ALiBi; each cache in the v0 layout too",
    bytes: "`4 * L * Hkv * D` per row, once more for each 4 heads of a larger GQA group",
    cases: crate::self_test::paged_decode::cases,
}

/// Lists the variants for each cache and for each of the forms that `lanes` returns for the cache.
pub(super) fn listed_by(sizes: &Sizes, lanes: impl Fn(&KvShape) -> Vec<Lanes>) -> Listed {
    let mut all = Listed::new();
    for (part, shape, attention) in Attention::listed_decode(sizes) {
        for lanes in lanes(&shape) {
            if lanes == Lanes::Matrices
                && (shape.layout != KvLayout::Native || attention.context == Context::Tokens)
            {
                continue;
            }
            let part = match lanes {
                Lanes::Subgroup(lanes) => format!("{lanes}-{part}"),
                Lanes::Alone(_) => format!("software-{part}"),
                Lanes::Workgroup | Lanes::Matrices => part.clone(),
            };
            all.push((part, variant(&shape, sizes.num_heads, lanes, &attention)));
        }
    }
    all
}

/// Number of keys of a partition if results must not depend on the rest of the batch, in contexts that are not very
/// long: [`SplitPlanner::fixed`](crate::split::SplitPlanner::fixed).
pub const PARTITION: u32 = 256;

/// Ways in which the lanes of a workgroup share its keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Lanes {
    /// Lanes share through workgroup memory, on any adapter.
    #[default]
    Workgroup,
    /// Each subgroup works by itself, if all subgroups of the adapter have this many lanes.
    Subgroup(u32),
    /// A workgroup is one subgroup of this many lanes: for software drivers, on which barriers switch between subgroups.
    Alone(u32),
    /// Lanes multiply cooperative matrices, for which queries, keys, values and softmax weights are rounded to f16.
    /// This form takes no listed tokens.
    Matrices,
}

impl Lanes {
    /// Chooses the fastest form of `paged_decode` for `num_heads` query heads over a cache of this shape, in a step
    /// whose rows attend `keys` keys in all. A `profile` at [`Level::Coop`] means that the device runs
    /// [`Self::Matrices`] and that results may be rounded to f16.
    #[must_use]
    pub fn of(profile: &DeviceProfile, shape: &KvShape, num_heads: u32, keys: u64) -> Self {
        // On an H200 a third less time for eight heads a KV head. For up to four in fp8 a step has a long way of its own, so that
        // it takes many at once: 512 Ki keys of all KV heads take 2 % more time, 1 Mi 10 % less, 4 Mi 19 %. In int8 the gain is
        // of that size, but scales that differ by orders of magnitude make logits grow so often that it is lost three times over.
        let shared = num_heads / shape.num_kv_heads > 4;
        let many = shape.dtype == KvDtype::Fp8 && keys * u64::from(shape.num_kv_heads) >= 1 << 20;
        let trusts = |kernel, level| profile.trusts(kernel, level, shape.dtype);
        let by_matrices = profile.runs_single_units() && (shared || many) && paged_decode_coop::serves(shape);
        if by_matrices && trusts(&paged_decode_coop::KERNEL, Level::Coop) {
            return Self::Matrices;
        }
        // On an H200 fp8 takes 6 % less time through workgroup memory, and several groups of heads 2 to 8 %.
        let slower = shape.dtype == KvDtype::Fp8 || groups(shape, num_heads, Self::Workgroup) > 1;
        // On an Apple M1 47 registers of int8 go to memory, and none through workgroup memory.
        let spills = profile.registers == Registers::Few && shape.dtype.is_code();
        match paged_decode_subgroup::form(profile, shape) {
            Some(form)
                if (profile.software || !slower && !spills)
                    && trusts(&paged_decode_subgroup::KERNEL, Level::Subgroup) =>
            {
                form
            }
            _ => Self::Workgroup,
        }
    }
}

params! {
    /// Uniform parameters.
    pub struct PagedDecodeParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Maximum number of partitions of a row: see [`partitions`].
        pub max_partitions: u32,
        /// Number of keys of a partition, as [`SplitPlan`](crate::split::SplitPlan) says.
        pub partition_size: u32,
        /// Factor on scores, usually `1 / sqrt(head_dim)`.
        pub scale: f32,
        /// Flag: 1 if `paged_reduce` follows; 0 if there is one partition and no sinks, so that `partial` is the output.
        pub reduced: u32,
        /// Number of entries from one list of selected blocks to the next.
        pub list_stride: u32,
        /// First row of the dispatch in `rows`, and first list of the lists.
        pub first_row: u32,
        /// First key of the dispatch in the order of attention, a multiple of `partition_size`; 0 if it attends all keys.
        pub first_key: u32,
        /// Number of keys of the dispatch, also a multiple of `partition_size`, or `u32::MAX` for all.
        pub num_keys: u32,
        /// Bound of scores with [`Logit::Softcap`](super::attention::Logit::Softcap).
        pub softcap: f32,
        /// Scale of keys in fp8.
        pub k_scale: f32,
        /// Scale of values in fp8.
        pub v_scale: f32,
        /// Number of rows of the dispatch, at most 65,535.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `paged_decode`.
    pub struct PagedDecodeBuffers(PagedDecodeParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        read v_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Rows to attend: the `n` rows of the dispatch are entries `first_row` and following.
        read rows: DecodeRow,
        /// Outputs of partitions, `[n, num_heads, max_partitions, head_dim]`, unnormalised; the output itself if nothing is
        /// reduced.
        write partial: f32,
        /// (max, sum) of each partition, `[n, num_heads, max_partitions]`.
        write stats: [f32; 2],
        /// Lists of blocks or tokens, `[n, num_kv_heads]` from list `first_row * num_kv_heads` on: count, then ascending
        /// blocks; with ALiBi, after its slopes.
        read selected: u32 = None,
        /// Slopes of ALiBi without lists, `[num_heads]`.
        read slopes: f32 = None,
    }
}

impl Default for PagedDecodeParams {
    /// Parameters with all keys of a row in one partition that no reduction follows, and no lists. Heads, stride,
    /// scale and rows are to be set.
    fn default() -> Self {
        Self {
            max_partitions: 1,
            partition_size: 1 << 31,
            num_keys: u32::MAX,
            k_scale: 1.0,
            v_scale: 1.0,
            ..bytemuck::Zeroable::zeroed()
        }
    }
}

/// Maximum number of keys of a row for which [`Lanes::Matrices`] may attend one step of keys per partition.
pub(crate) const SHORT: u32 = 64 * paged_decode_coop::KEYS;

/// Minimum number of keys of a partition: those that a workgroup attends at a time. For [`Lanes::Matrices`], they are
/// 16, 32 or 64, and grow with `longest`, the number of keys of the step's longest row.
#[must_use]
pub fn tile(shape: &KvShape, lanes: Lanes, longest: u32) -> u32 {
    match lanes {
        Lanes::Workgroup | Lanes::Alone(_) => 256,
        Lanes::Subgroup(_) if shape.dtype.is_code() => 256,
        Lanes::Subgroup(_) => 128,
        // On an H200 with eight heads a KV head, against four steps at any length: of up to 320 keys one stream decodes 3 to 11 %
        // more tokens, eight 3 to 18 %; at 8,192, where there is more to merge than that spares, one step takes 7 % off.
        Lanes::Matrices => longest.div_ceil(SHORT).next_power_of_two().min(4) * paged_decode_coop::KEYS,
    }
}

/// Number of partitions of `size` keys that hold keys from index `begin` to before `end`, in the order of attention:
/// without lists, positions.
#[must_use]
pub const fn partitions(size: u32, begin: u32, end: u32) -> u32 {
    if begin < end { end.div_ceil(size) - begin / size } else { 0 }
}

/// Number of query heads that share one read of the cache: as many as fit, spread evenly over the fewest groups. If
/// four fit, seven heads make two groups of four, and the second group begins one head early.
#[must_use]
pub fn heads_per_group(shape: &KvShape, num_heads: u32, lanes: Lanes) -> u32 {
    let most = match lanes {
        Lanes::Matrices => paged_decode_coop::HEADS,
        // Weights, queries and sums of 4 heads fit in WebGPU's workgroup memory up to heads of 256, of 2 up to 512.
        _ if shape.head_dim > 256 => 2,
        _ => 4,
    };
    let of_kv_head = num_heads / shape.num_kv_heads;
    of_kv_head.div_ceil(of_kv_head.div_ceil(most))
}

/// Returns the variant for one cache shape and `num_heads` query heads.
///
/// # Panics
/// For query heads that are not the same number for each KV head, for subgroups that do not
/// [serve](paged_decode_subgroup::serves) the shape, and for matrices that do [not](paged_decode_coop::serves), or are to
/// attend listed tokens.
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, lanes: Lanes, attention: &Attention) -> Variant {
    shape.check();
    let kv_heads = shape.num_kv_heads;
    assert!(num_heads.is_multiple_of(kv_heads), "{num_heads} query heads, {kv_heads} KV heads");
    let heads = heads_per_group(shape, num_heads, lanes);
    let (variant, run) = match lanes {
        Lanes::Workgroup => (by_workgroups(shape, attention.context).over_cache(super::KV, shape), 1),
        Lanes::Subgroup(_) | Lanes::Alone(_) => {
            let variant = paged_decode_subgroup::of(shape, lanes, attention.context);
            (variant.over_cache(super::KV, shape), 1)
        }
        Lanes::Matrices => (paged_decode_coop::of(shape, heads), paged_decode_coop::KEYS),
    };
    let variant = variant
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::GROUP, heads);
    attention.paged(attention.specialise(variant, shape, run))
}

/// Whether two keys are loaded at once.
const PAIRED: OneOf<bool> = OneOf::new("keys", &[(false, "keys_apart"), (true, "keys_paired")]);
/// Whether lists name tokens.
const TOKENS: OneOf<bool> = OneOf::new("places", &[(false, "places_blocks"), (true, "places_tokens")]);

/// Returns the choices that only `Lanes::Workgroup` has. Codes take more arithmetic per byte, so it pays to load two
/// keys, and several chunks, at once.
fn by_workgroups(shape: &KvShape, context: Context) -> Variant {
    let tokens = context == Context::Tokens;
    let (paired, max_ahead) = match shape.dtype.is_code() {
        false => (false, 1),
        true if tokens => (false, 4),
        true => (true, 4),
    };
    Variant::new(&KERNEL)
        .set(PAIRED, paired)
        .set(TOKENS, tokens)
        .set(slot::CHUNKS_AHEAD, chunks_ahead(shape, max_ahead))
}

/// Number of chunks of its keys that a lane loads at a time: at most `most`, a power of two.
pub(super) fn chunks_ahead(shape: &KvShape, most: u32) -> u32 {
    most.min(1 << (shape.head_dim / 8).trailing_zeros())
}

/// Number of groups of the query heads of a KV head.
pub(crate) fn groups(shape: &KvShape, num_heads: u32, lanes: Lanes) -> u32 {
    (num_heads / shape.num_kv_heads).div_ceil(heads_per_group(shape, num_heads, lanes))
}

/// Number of partitions of a row that a dispatch over `num_keys` keys attends, at most `max_partitions`.
pub(super) fn dispatched(max_partitions: u32, num_keys: u32, partition_size: u32) -> u32 {
    max_partitions.min(num_keys / partition_size)
}

/// Returns the grid of `paged_decode` and of its forms: a workgroup for each partition that the dispatch goes through.
pub(super) fn grid(params: &PagedDecodeParams, variant: &Variant) -> [u32; 3] {
    let partitions = dispatched(params.max_partitions, params.num_keys, params.partition_size);
    let groups = (params.num_heads / params.num_kv_heads).div_ceil(variant.number(slot::GROUP));
    [partitions * groups, params.num_kv_heads, params.rows]
}

/// Checks `rows`, `[row of q, keys, first entry of the block table, first key]`, and the blocks of `tables` that they read,
/// against a cache of `num_blocks` blocks and buffers of `q_len`, `partial_len` and `stats_len` elements. Lists are
/// not looked at.
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
    launch.at_most("rows of the dispatch", params.rows.into(), rows.len() as u64)?;
    launch.not_zero("keys of a partition", params.partition_size)?;
    let width = u64::from(params.num_heads) * u64::from(shape.head_dim);
    let most = u64::from(params.max_partitions);
    let groups = u64::from(groups(shape, params.num_heads, Lanes::Workgroup));
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
            launch.entry(
                "partitions",
                entry,
                partitions(params.partition_size, *first, *len).into(),
                most,
            )?;
        }
        let (first, end) = (first / shape.block_size, len.div_ceil(shape.block_size));
        let of_table = [first, end].map(|block| u64::from(*table) + u64::from(block));
        launch.table(entry, tables, (of_table[0], of_table[1]), num_blocks)?;
    }
    Ok(())
}

/// Checks that `rows` results of `num_heads` heads fit into an output of `out_len` elements.
///
/// # Errors
/// An output that is too short.
pub fn check_out(shape: &KvShape, num_heads: u32, rows: usize, out_len: usize) -> Result<(), LaunchError> {
    let needed = rows as u64 * u64::from(num_heads) * u64::from(shape.head_dim);
    Launch(KERNEL.name).at_most("f32 of the output", needed, out_len as u64)
}
