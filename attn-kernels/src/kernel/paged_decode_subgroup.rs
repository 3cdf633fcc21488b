//! `paged_decode` where all subgroups of an adapter have the same number of lanes: [`Lanes::Subgroup`].

#[cfg(doc)]
use super::paged_decode::Lanes;

use super::attention::Context;
use super::{KvShape, paged_decode};
use crate::profile::Registers;
use crate::{Kernel, Variant};

/// Parameters and bindings are those of [`paged_decode`].
pub static KERNEL: Kernel = Kernel {
    name: "paged_decode_subgroup",
    role: crate::Role::Attention,
    wgsl: include_str!("../../wgsl/paged_decode_subgroup.wgsl"),
    ..paged_decode::KERNEL
};

/// Subgroup sizes that [`variants`](crate::variants) lists, so that self-tests cover them.
pub const SUBGROUPS: [u32; 2] = [8, 32];

/// Whether subgroups of `lanes` lanes hold the values of a key, eight dimensions per lane.
#[must_use]
pub const fn serves(shape: &KvShape, lanes: u32) -> bool {
    shape.head_dim / 8 <= lanes
}

/// Returns the choices of this kernel alone; [`paged_decode::variant`] fills the rest.
pub(super) fn of(shape: &KvShape, lanes: u32, context: Context) -> Variant {
    assert!(serves(shape, lanes), "subgroups of {lanes} lanes for heads of {}", shape.head_dim);
    // One load brings codes of two neighbouring keys; listed tokens have no neighbours.
    let pairs = shape.dtype.is_code() && context != Context::Tokens;
    let (keys, count, max_ahead) = if pairs { ("lane_key_pair", 2, 2) } else { ("lane_key", 1, 1) };
    let variant = Variant::new(&KERNEL);
    // Two keys of codes, and their scales, are more than few registers hold: see `Lanes::of`.
    let variant = if shape.dtype.is_code() { variant.for_registers(Registers::Many) } else { variant };
    variant
        .module("keys", keys)
        .size("KEYS", count)
        .size("SUBGROUP", lanes)
        .with_subgroups(lanes..=lanes)
        .size("CHUNKS_AHEAD", paged_decode::chunks_ahead(shape, max_ahead))
}
