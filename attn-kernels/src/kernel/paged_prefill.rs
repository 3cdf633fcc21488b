//! Flash attention of many query rows over paged KV.

use super::attention::Attention;
use super::{KvDtype, KvLayout, KvShape, heads_together};
use crate::Variant;
use crate::declare::{CODES, Listed, Sizes};
use crate::rows::{KvWord, PhysicalBlock};
use crate::slot::{self, Flag, OneOf};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

kernel! {
    /// The kernel; [`PagedPrefillBuffers`] lists its bindings.
    "paged_prefill"(PagedPrefillParams, PagedPrefillBuffers): Attention,
    grid: |params, variant| [params.num_heads / variant.number(slot::GROUP), params.tiles, params.parts],
    listed: listed,
    variants: "f16, f32, fp8, int8; keys read by all lanes or broadcast, and loops that software drivers do not unroll; all keys or listed blocks; causal, sliding window or chunks; scores plain, soft-capped or with ALiBi; with or without keys that are left out for their weight; each cache in the v0 layout too",
    bytes: "`4 * L * H * D` per tile of 64 rows, of which caches serve the heads of a group",
    cases: crate::self_test::paged_prefill::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    let of =
        |shape: &KvShape, loads, attention: &Attention| variant(shape, sizes.num_heads, loads, attention);
    let mut all = Listed::new();
    for (name, attention, types) in Attention::listed(sizes) {
        for shape in types.iter().map(|dtype| sizes.cache(*dtype)) {
            let dtype = shape.dtype.name();
            all.push((format!("{name}{dtype}"), of(&shape, KeyLoads::Uniform, &attention)));
            all.push((format!("{name}broadcast-{dtype}"), of(&shape, KeyLoads::Broadcast, &attention)));
        }
    }
    let dense = Attention::default();
    for shape in CODES.map(|dtype| sizes.cache(dtype)) {
        let dtype = shape.dtype.name();
        all.push((dtype.into(), of(&shape, KeyLoads::Uniform, &dense)));
        all.push((format!("software-{dtype}"), of(&shape, KeyLoads::Broadcast, &dense)));
    }
    all.extend(sizes.each_layout(&[KvLayout::V0], |shape| of(shape, KeyLoads::Uniform, &dense)));
    all
}

/// Consecutive query rows of one sequence, and the place of its block table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Tile {
    /// First row of queries and output.
    pub row: u32,
    /// Number of rows, at most the kernel's `TILE_ROWS`.
    pub rows: u32,
    /// Position of the first row in its sequence.
    pub position: u32,
    /// First entry of the sequence's block table.
    pub table: u32,
    /// Query block whose lists of selected blocks apply, one list per KV head.
    pub list: u32,
    /// Padding to eight words, because devices bind lists only at multiples of their alignment.
    pad: [u32; 3],
}

impl Tile {
    /// Creates a tile of the rows `rows` of queries and output. The first has `position` in its sequence, whose block
    /// table begins at entry `table`.
    #[must_use]
    pub fn new(rows: Range<u32>, position: u32, table: u32) -> Self {
        let (row, rows) = (rows.start, rows.end - rows.start);
        Self { row, rows, position, table, ..Self::default() }
    }

    /// Sets the query block whose lists of selected blocks apply.
    #[must_use]
    pub fn listed(self, list: u32) -> Self {
        Self { list, ..self }
    }
}

params! {
    /// Uniform parameters.
    pub struct PagedPrefillParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next, a multiple of 4.
        pub q_stride: u32,
        /// First key of this dispatch in the order of attention, a multiple of 8, or of 16 for `paged_prefill_coop`.
        pub first_key: u32,
        /// Factor on scores, usually `1 / sqrt(head_dim)`.
        pub scale: f32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
        /// Number of keys of this dispatch, a multiple of 8.
        pub num_keys: u32,
        /// Number of entries from one list of selected blocks to the next.
        pub list_stride: u32,
        /// Number of tokens of the sliding window or chunk: [`Reach::tokens`](super::attention::Reach::tokens).
        pub window: u32,
        /// Bound of scores with [`Logit::Softcap`](super::attention::Logit::Softcap).
        pub softcap: f32,
        /// Scale of keys in fp8.
        pub k_scale: f32,
        /// Scale of values in fp8.
        pub v_scale: f32,
        /// Number of keys of a part, a multiple of 8, or of 16 for `paged_prefill_coop`. The grid has one part per
        /// workgroup along z, each with its own output, and [`prefill_reduce`](super::prefill_reduce) merges them. By
        /// default, one part has all keys.
        pub part_keys: u32,
        /// Number of rows of `out` and `lse` between successive parts.
        pub part_rows: u32,
        /// Logarithm of the skipping threshold, with [`Attention::skip`]: the natural logarithm of the threshold
        /// times the keys of a row. Keys whose weight is below `e^log_skip / keys` of the largest are left out. Rows
        /// of no more than `e^log_skip` keys leave nothing out.
        pub log_skip: f32,
        /// Number of tiles of the dispatch, at most 65,535.
        pub tiles: u32,
        /// Number of parts of the keys.
        pub parts: u32,
    }
}

bindings! {
    /// Buffers of `paged_prefill`.
    pub struct PagedPrefillBuffers(PagedPrefillParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]`.
        read q: f32,
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Cache of values, in the layout of `KvShape`.
        read v_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Tiles, `[n]`.
        read tiles: Tile,
        /// Output, `[rows, num_heads, head_dim]`; with several parts, their outputs one after the other.
        write out: f32,
        /// Log-sum-exps (natural logarithm), `[rows, num_heads]`; with several parts, those of the parts one after
        /// the other.
        write lse: f32,
        /// Lists of blocks, `[query blocks, num_kv_heads]`: count, then ascending blocks. With ALiBi, they follow its
        /// slopes.
        read selected: u32 = None,
        /// Slopes of ALiBi without lists, `[num_heads]`.
        read slopes: f32 = None,
    }
}

impl Default for PagedPrefillParams {
    /// Parameters with all keys in one part, no window and no lists. The caller sets heads, stride, scale and
    /// tiles.
    fn default() -> Self {
        Self {
            neg_inf: f32::NEG_INFINITY,
            num_keys: u32::MAX,
            k_scale: 1.0,
            v_scale: 1.0,
            part_keys: u32::MAX,
            parts: 1,
            ..bytemuck::Zeroable::zeroed()
        }
    }
}

/// Ways in which lanes load keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyLoads {
    /// Every lane reads the same address: one broadcast load on GPUs.
    Uniform,
    /// Eight lanes read a word each and broadcast it in the subgroup, except for codes. This is for software drivers,
    /// which run each lane's load separately. Loops over keys are not unrolled, because the compile time of these
    /// drivers would grow far more than the text.
    Broadcast,
}

/// Maximum number of query rows of a workgroup.
pub const TILE_ROWS: u32 = 64;

/// Number of query rows that a workgroup serves.
#[must_use]
pub const fn tile_rows(loads: KeyLoads) -> u32 {
    match loads {
        KeyLoads::Uniform => TILE_ROWS,
        // One subgroup: others of the workgroup would run after it, also for rows that are not there.
        KeyLoads::Broadcast => 8,
    }
}

/// Number of keys that a dispatch covers on a software driver: llvmpipe ends a lane without notice after 65,535
/// rounds of its loops, and 512 keys take at most some 40,000.
const SOFTWARE_KEYS: u32 = 512;

/// Returns `(first_key, num_keys)` of each dispatch, in order, for rows that see keys from `first` to `last` in the
/// order of attention: one on a GPU. The ends depend on the device alone, so that results do not depend on the chunk.
pub fn segments(first: u32, last: u32, software: bool) -> impl Iterator<Item = (u32, u32)> {
    let keys = if software { SOFTWARE_KEYS } else { u32::MAX };
    (first / keys * keys..=last).step_by(keys as usize).map(move |first| (first, keys))
}

/// Number of lanes that share a query row of `head_dim` channels: the fewest with which each has at most
/// [`LANE_ELEMENTS`] channels, up to four, as workgroups have 256 lanes on every device.
pub(super) fn lanes_per_row(head_dim: u32) -> u32 {
    let whole = |n: &u32| (head_dim / 8).is_multiple_of(*n);
    let few = (1..=4).filter(whole).find(|n| head_dim / n <= LANE_ELEMENTS);
    few.or_else(|| (1..=4).rfind(whole)).unwrap_or(1)
}

/// Number of channels of a lane's queries, and of its outputs: both are in registers, and a lane of an Apple M1 has
/// 128. On an H200 heads of 128 run at 7.9, 8.3 and 8.8 TFLOP/s by one, two and four lanes a row, heads of 64 at 9.5,
/// 12.0 and 6.5.
const LANE_ELEMENTS: u32 = 32;

/// Number of query heads that a lane serves.
#[must_use]
pub fn heads_per_lane(shape: &KvShape, num_heads: u32, loads: KeyLoads) -> u32 {
    match loads {
        // Query and output of a part of one head fill a lane's registers.
        KeyLoads::Uniform => 1,
        // Registers spill anyway; loads are what costs.
        KeyLoads::Broadcast => {
            let most = (SOFTWARE_ELEMENTS / shape.head_dim).clamp(1, 4);
            heads_together(num_heads / shape.num_kv_heads, most)
        }
    }
}

/// Number of elements of the heads that a lane of [`KeyLoads::Broadcast`] serves. With more elements, llvmpipe
/// compiles disproportionately longer, and runs faster: two heads of 128 are compiled in 6 s, and 1,024 rows take
/// 0.14 s; four heads are compiled in 20 s, and the rows take 0.10 s.
const SOFTWARE_ELEMENTS: u32 = 256;

/// Type of keys that lanes broadcast to each other, if they do.
const BROADCAST: OneOf<Option<KvDtype>> = OneOf::new(
    "keys",
    &[
        (None, "keys_uniform"),
        (Some(KvDtype::F16), "keys_broadcast_f16"),
        (Some(KvDtype::F32), "keys_broadcast_f32"),
    ],
);
/// Whether compilers know the number of iterations of loops, by the way lanes load.
pub(crate) const TRIPS: OneOf<KeyLoads> =
    OneOf::new("trips", &[(KeyLoads::Uniform, "trips_known"), (KeyLoads::Broadcast, "trips_hidden")]);
/// Whether loops index the scores of a tile, by the way lanes load.
const SCORES: OneOf<KeyLoads> =
    OneOf::new("scores", &[(KeyLoads::Uniform, "scores_indexed"), (KeyLoads::Broadcast, "scores_compared")]);
/// Whether one lane computes a whole row.
const ALONE: Flag = Flag("ALONE");
/// Whether lanes share a row.
const SHARED: Flag = Flag("SHARED");
/// Whether a lane skips keys of little weight.
const LEAVES: Flag = Flag("LEAVES");

/// Returns the variant for one cache shape and `num_heads` query heads.
#[must_use]
pub fn variant(shape: &KvShape, num_heads: u32, loads: KeyLoads, attention: &Attention) -> Variant {
    shape.check();
    // Elements of a key that lanes broadcast at once: of f16 two chunks of eight. They read codes at one address, and so values
    // whose neighbours are of other tokens.
    let broadcast = match shape.dtype {
        _ if loads == KeyLoads::Uniform || shape.layout != KvLayout::Native => None,
        KvDtype::F16 => Some(16),
        KvDtype::F32 => Some(8),
        KvDtype::Fp8 | KvDtype::Int8 => None,
    };
    let broadcast = broadcast.filter(|elements| shape.head_dim.is_multiple_of(*elements));
    let variant = Variant::new(&KERNEL).over_cache(super::KV, shape);
    let variant = match broadcast {
        Some(_) => variant.set(BROADCAST, Some(shape.dtype)).with_broadcasts(),
        None => variant.set(BROADCAST, None),
    };
    let variant = variant.set(TRIPS, loads).set(SCORES, loads);
    let (variant, share) = match loads {
        KeyLoads::Uniform => (variant, lanes_per_row(shape.head_dim)),
        KeyLoads::Broadcast => (variant.for_software(), 1),
    };
    let variant = variant
        .set(slot::SPANS, shape.head_dim / share / broadcast.unwrap_or(8))
        .set(slot::SHARE, share)
        .set(ALONE, share == 1)
        .set(SHARED, share > 1)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::GROUP, heads_per_lane(shape, num_heads, loads))
        .set(slot::WG, tile_rows(loads) * share);
    // Lanes that read keys and values for each other do so whatever they leave out.
    let leaves = attention.skip && broadcast.is_none();
    let variant = attention.skips(variant).set(LEAVES, leaves);
    attention.paged(attention.mask(attention.specialise(variant, shape, 8)))
}
