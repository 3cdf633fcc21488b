//! Flash attention of many query rows over paged KV with cooperative matrices: `paged_prefill` of [`Level::Coop`].
//!
//! Bindings, parameters, tiles and results are those of [`paged_prefill`](super::paged_prefill). Queries, softmax weights,
//! keys and values are f16, sums f32; codes of an 8-bit cache become f16 on the way. Runs where
//! [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::attention::{Attention, Pages};
use super::{CacheSlot, KvDtype, KvLayout, KvShape};
use crate::Variant;
use crate::declare::{CODES, Listed, Sizes};
use crate::profile::DeviceProfile;
use crate::slot::{self, Flag, Number};

kernel! {
    /// The kernel, with the parameters and bindings of [`paged_prefill`](super::paged_prefill).
    "paged_prefill_coop"(super::paged_prefill::PagedPrefillParams, super::paged_prefill::PagedPrefillBuffers): Attention,
    grid: |params, _| [params.num_heads, params.tiles, params.parts],
    listed: listed,
    variants: "as `paged_prefill`, by matrices: f16, fp8, int8, heads of up to 256",
    bytes: "`4 * L * H * D` per tile of 128 rows, of which caches serve the heads of a group",
    cases: crate::self_test::paged_prefill::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    let f16 = Attention::listed(sizes)
        .map(|(name, attention, _)| (format!("{name}f16"), variant(&sizes.f16(), &attention)));
    let pages = Attention { pages: Pages::OfHeads, ..Attention::blocks(64) };
    let coded = sizes.each(&CODES, |shape| variant(shape, &Attention::default()));
    let paged = sizes.each(&CODES, |shape| variant(shape, &pages));
    let paged = paged.into_iter().map(|(dtype, variant)| (format!("pages-{dtype}"), variant));
    f16.into_iter().chain(coded).chain(paged).collect()
}

const SUBGROUPS: u32 = 4;

/// Number of query rows that a workgroup serves.
pub const TILE_ROWS: u32 = 32 * SUBGROUPS;

/// Head size above which two subgroups share rows that otherwise one serves, so that their registers hold queries and
/// output.
const WIDE: u32 = 128;

/// Whether the kernel serves caches of this shape on a device: all types but f32, head sizes that are multiples of 16
/// up to 256. Head sizes above 128 need two matrices along the rows of a subgroup, and twice the lanes.
#[must_use]
pub fn serves(shape: &KvShape, profile: &DeviceProfile) -> bool {
    let halves = halves(shape);
    is_formed(shape)
        && profile.matrices.is_some_and(|matrices| {
            let lanes = TILE_ROWS * matrices.lanes().div_ceil(32) * halves;
            matrices.lanes().min(32) >= matrices.size() * halves && lanes <= profile.workgroup_lanes
        })
}

/// Whether the kernel serves the shape on some device.
fn is_formed(shape: &KvShape) -> bool {
    shape.dtype != KvDtype::F32 && shape.head_dim.is_multiple_of(16) && shape.head_dim <= 2 * WIDE
}

/// Number of subgroups that share rows: 1 for heads of up to 128 elements, 2 for larger ones.
fn halves(shape: &KvShape) -> u32 {
    shape.head_dim.div_ceil(WIDE)
}

/// Module that stages keys and values of a tile.
const STAGED: CacheSlot = CacheSlot::new(
    "kv",
    &[
        ((KvLayout::Native, KvDtype::F16), "kv_coop_f16"),
        ((KvLayout::Native, KvDtype::Fp8), "kv_coop_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "kv_coop_int8"),
    ],
);
/// Number of subgroups that share rows: 1 or 2.
pub(crate) const HALVES: Number = Number("HALVES");
/// Whether no keys are skipped.
const PLAIN: Flag = Flag("PLAIN");

/// Returns the variant for one cache shape.
///
/// # Panics
/// For f32, and for head sizes that [`serves`] never takes.
#[must_use]
pub fn variant(shape: &KvShape, attention: &Attention) -> Variant {
    shape.check();
    assert!(is_formed(shape), "{shape:?}: f32, or the head size is not a multiple of 16 up to 256");
    let (spans, halves) = (shape.head_dim / 16, halves(shape));
    let variant = Variant::new(&KERNEL)
        .with_matrices()
        .over_cache(STAGED, shape)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::SUBGROUPS, SUBGROUPS)
        .set(slot::SPANS, spans)
        .set(HALVES, halves)
        .set(slot::LOADS, spans.div_ceil(SUBGROUPS * halves));
    let variant = attention.skips(variant).set(PLAIN, !attention.skip);
    attention.paged_ahead(attention.mask(attention.specialise(variant, shape, 16)))
}
