//! Form of `block_score` that scores single blocks of the cache by bounds, whose lanes add up a block by shuffles.

use super::KvDtype;
use super::block_digest::{self, Digest};
use super::block_score::{self, BOUNDS, OVERFLOWS, SCORING};
use crate::declare::{Listed, Sizes};
use crate::{Variant, slot};

kernel! {
    /// The kernel, with the parameters, bindings and grid of [`block_score`].
    "block_score_subgroup"(super::block_score::BlockScoreParams, super::block_score::BlockScoreBuffers): Selection,
    grid: block_score::grid,
    listed: listed,
    variants: "digests f16, f32; bound (Quest) of single pages, heads of 64 and 128; subgroups of at least an eighth of the head size",
    bytes: "as `block_score`",
    cases: crate::self_test::block_score::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    let types = [KvDtype::F16, KvDtype::F32, KvDtype::Int8];
    let pages = sizes
        .each(&types, |shape| block_score::variant(shape, sizes.num_heads, Digest::MinMax, shape.block_size));
    pages.into_iter().filter_map(|(dtype, pages)| Some((dtype, of(&pages)?))).collect()
}

/// Returns the counterpart of a variant of [`block_score`], for adapters on which every subgroup has at least one
/// lane for each chunk of eight channels of a head. Returns `None` for variants that the kernel does not serve: mean
/// keys, bounds that are kept, blocks of several pages, and heads of other sizes.
#[must_use]
pub fn of(variant: &Variant) -> Option<Variant> {
    let head_dim = variant.get(slot::HEAD_DIM)?;
    let serves = variant.get(SCORING) == Some(Digest::MinMax)
        && variant.get(BOUNDS).is_none()
        && variant.get(slot::PAGES) == Some(1)
        && matches!(head_dim, 64 | 128);
    let digests = variant.get(block_digest::READ)?;
    let of = Variant::new(&KERNEL)
        .set(block_digest::READ, digests)
        .set(slot::HEAD_DIM, head_dim)
        .set(slot::BLOCK_SIZE, variant.get(slot::BLOCK_SIZE)?)
        .set(slot::HEADS, variant.get(slot::HEADS)?)
        .set(OVERFLOWS, variant.get(OVERFLOWS)?);
    // As many bytes on their way as of four in f16: four take 64 registers, and more than Intel's lanes have left.
    let of = if digests == KvDtype::F32 { of.set(slot::AHEAD, 2) } else { of };
    serves.then(|| of.with_subgroups(head_dim / 8..=u32::MAX))
}
