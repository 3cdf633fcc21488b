//! Computes the slots of a chunk of cached prefixes.

use crate::Variant;
use crate::declare::one;
use crate::rows::{PhysicalBlock, Span};

kernel! {
    /// The kernel; [`PrefixSlotsBuffers`] lists its bindings.
    "prefix_slots"(PrefixSlotsParams, PrefixSlotsBuffers): Cache,
    grid: |params, _| [params.max_tokens.div_ceil(256), params.spans, 1],
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
        /// Number of spans, at most 65,535.
        pub spans: u32,
        /// Number of tokens of the longest span.
        pub max_tokens: u32,
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

impl PrefixSlotsParams {
    /// Parameters for these spans, at most 65,535, each the words of a [`Span`], over blocks of `block_size` tokens.
    #[must_use]
    pub fn new(block_size: u32, spans: &[[u32; 4]]) -> Self {
        let most = spans.iter().map(|span| span[1]).max().unwrap_or(0);
        let count = u32::try_from(spans.len()).expect("at most 65,535 spans");
        Self { block_size, spans: count, max_tokens: most }
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
