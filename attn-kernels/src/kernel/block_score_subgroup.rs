//! `block_score` by bounds over single pages, where the lanes of a page add up by shuffles.

use super::block_score;
use crate::{Kernel, Variant};

/// The kernel; parameters, bindings and grid are those of [`block_score`].
pub static KERNEL: Kernel = Kernel {
    name: "block_score_subgroup",
    role: crate::Role::Selection,
    wgsl: include_str!("../../wgsl/block_score_subgroup.wgsl"),
    ..block_score::KERNEL
};

/// Stands in for a variant of [`block_score`], for adapters whose subgroups all have as many lanes as a head has chunks of
/// eight channels, or more. `None` for what the kernel does not serve: mean keys, bounds that are kept, blocks of several pages,
/// and heads of other than 64 and 128 channels.
#[must_use]
pub fn of(variant: &Variant) -> Option<Variant> {
    let size = |slot| variant.size_in(slot);
    let lanes = size("HEAD_DIM")? / 8;
    let serves = variant.module_in("scoring") == Some("blocks_bound")
        && variant.module_in("bounds").is_none()
        && size("PAGES") == Some(1)
        && matches!(size("HEAD_DIM"), Some(64 | 128));
    let mut all = Variant::new(&KERNEL).module("digests", variant.module_in("digests")?);
    for slot in ["HEAD_DIM", "BLOCK_SIZE", "HEADS", "OVERFLOWS"] {
        all = all.size(slot, size(slot)?);
    }
    serves.then(|| all.with_subgroups(lanes..=u32::MAX))
}
