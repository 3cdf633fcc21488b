//! Slots of a chunk of cached prefixes.

use super::LaunchError;
use super::error::Launch;
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
        /// Tokens of a block.
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

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Workgroups for `spans`.
#[must_use]
pub fn grid(spans: &[[u32; 4]]) -> [u32; 3] {
    let most = spans.iter().map(|span| span[1]).max().unwrap_or(0);
    let count = u32::try_from(spans.len()).expect("checked: at most 65,535 spans");
    [most.div_ceil(256), count, 1]
}

/// Checks `spans`, `[first position, tokens, first slot, first entry of the block table]`, against `tables_len` entries and
/// `slots_len` slots.
///
/// # Errors
/// More spans than a dispatch has, a span outside the tables or the slots.
pub fn check(
    params: &PrefixSlotsParams,
    spans: &[[u32; 4]],
    [tables_len, slots_len]: [usize; 2],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("block size", params.block_size)?;
    launch.at_most("spans", spans.len() as u64, 65_535)?;
    for (entry, span) in spans.iter().enumerate() {
        let [start, tokens, slot, table] = span.map(u64::from);
        launch.entry("end in the slots", entry, slot + tokens, slots_len as u64)?;
        let blocks = (start + tokens).div_ceil(params.block_size.into());
        launch.entry("end in the tables", entry, table + blocks, tables_len as u64)?;
    }
    Ok(())
}
