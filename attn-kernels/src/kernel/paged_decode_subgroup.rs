//! `paged_decode` where all subgroups of an adapter have the same number of lanes: [`Lanes::Subgroup`].

use super::attention::Context;
use super::paged_decode::{self, Lanes};
use super::{KvLayout, KvShape};
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::profile::Registers;
use crate::slot::{self, Number, OneOf};

kernel! {
    /// The kernel, with the parameters and bindings of [`paged_decode`].
    "paged_decode_subgroup"(super::paged_decode::PagedDecodeParams, super::paged_decode::PagedDecodeBuffers): Attention,
    listed: listed,
    variants: "as `paged_decode`, keys shared by a subgroup of 8 or 32 lanes",
    bytes: "as `paged_decode`",
    cases: crate::self_test::paged_decode::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    paged_decode::listed_by(sizes, |shape| {
        SUBGROUPS.into_iter().filter(|lanes| serves(shape, *lanes)).map(Lanes::Subgroup).collect()
    })
}

/// Subgroup sizes that [`variants`](crate::variants) lists, so that self-tests cover them.
pub const SUBGROUPS: [u32; 2] = [8, 32];

/// Whether subgroups of `lanes` lanes hold the values of a key, eight dimensions per lane.
#[must_use]
pub const fn serves(shape: &KvShape, lanes: u32) -> bool {
    shape.head_dim / 8 <= lanes
}

/// Whether a lane loads two keys at once.
const PAIRED: OneOf<bool> = OneOf::new("keys", &[(false, "lane_key"), (true, "lane_key_pair")]);
/// Keys that a lane loads at once.
const KEYS: Number = Number("KEYS");

/// Returns the choices that only this kernel has; [`paged_decode::variant`] fills the rest.
pub(super) fn of(shape: &KvShape, lanes: u32, context: Context) -> Variant {
    assert!(serves(shape, lanes), "subgroups of {lanes} lanes for heads of {}", shape.head_dim);
    // One load brings codes of two neighbouring keys; listed tokens have no neighbours.
    let pairs = shape.dtype.is_code() && context != Context::Tokens;
    let count = if pairs { 2 } else { 1 };
    let variant = Variant::new(&KERNEL);
    // Two keys of codes, and their scales, are more than few registers hold: see `Lanes::of`.
    let variant = if shape.dtype.is_code() { variant.for_registers(Registers::Many) } else { variant };
    // A value takes eight loads where its tokens come last, and eight values on their way more registers than an Apple M1 has.
    let variant = match shape.layout {
        KvLayout::V0 if lanes == 32 => variant.set(slot::AHEAD, 4),
        _ => variant,
    };
    variant
        .set(PAIRED, pairs)
        .set(KEYS, count)
        .set(slot::SUBGROUP, lanes)
        .with_subgroups(lanes..=lanes)
        .set(slot::CHUNKS_AHEAD, paged_decode::chunks_ahead(shape, count))
}
