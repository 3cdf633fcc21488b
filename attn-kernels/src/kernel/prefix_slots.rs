//! Computes the slots of a chunk of cached prefixes.

use crate::Variant;
use crate::declare::one;
use crate::rows::{PhysicalBlock, Span};

kernel! {
    /// The kernel; [`PrefixSlotsBuffers`] lists its bindings.
    "prefix_slots"(PrefixSlotsParams, PrefixSlotsBuffers): Cache,
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`8` per token",
    cases: crate::self_test::indexer::prefix_slots,
}

params! {
    /// Uniform parameters.
    pub struct PrefixSlotsParams {
        /// Number of tokens of a block.
        pub block_size: u32,
    }
}

bindings! {
    /// Buffers of `prefix_slots`.
    pub struct PrefixSlotsBuffers(PrefixSlotsParams) {
        /// Runs of positions, `[n]`.
        read spans: Span,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Slots, `block * block_size + offset`.
        write slots: u32,
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Returns the number of workgroups for `spans`.
#[must_use]
pub fn grid(spans: &[[u32; 4]]) -> [u32; 3] {
    let most = spans.iter().map(|span| span[1]).max().unwrap_or(0);
    let count = u32::try_from(spans.len()).expect("checked: at most 65,535 spans");
    [most.div_ceil(256), count, 1]
}
