//! `paged_decode` with cooperative matrices: [`Lanes::Matrices`].
//!
//! Queries, keys, values and softmax weights go through matrices as f16, sums are f32. A step costs about the same for one query
//! head and for sixteen, and codes become f16 with two or three instructions a pair: that pays where many heads share
//! keys, and for caches of codes. Runs where
//! [`runs_single_units`](crate::profile::DeviceProfile::runs_single_units) says so.

use super::paged_decode::{self, Lanes};
use super::{CacheSlot, KvDtype, KvLayout, KvShape};
use crate::declare::{Listed, Sizes};
use crate::profile::UNIT;
use crate::{Variant, slot};

kernel! {
    /// The kernel, with the parameters and bindings of [`paged_decode`].
    "paged_decode_coop"(super::paged_decode::PagedDecodeParams, super::paged_decode::PagedDecodeBuffers): Attention,
    grid: paged_decode::grid,
    listed: listed,
    variants: "as `paged_decode`, in matrices: f16, fp8 and int8, heads of 32, 64 and 128, no listed tokens",
    bytes: "`4 * L * Hkv * D` per row, once more for each 16 heads of a larger GQA group",
    cases: crate::self_test::paged_decode::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    paged_decode::listed_by(sizes, |shape| if serves(shape) { vec![Lanes::Matrices] } else { Vec::new() })
}

/// Number of keys of a step.
pub(super) const KEYS: u32 = 16;

/// Number of query heads of a KV head that a workgroup serves: the rows of a matrix.
pub(super) const HEADS: u32 = 16;

/// Whether the kernel serves caches of this shape: all types but f32, heads of 32, 64 and 128, blocks of whole steps of 16 keys.
#[must_use]
pub fn serves(shape: &KvShape) -> bool {
    shape.dtype != KvDtype::F32
        && matches!(shape.head_dim, 32 | 64 | 128)
        && shape.block_size.is_multiple_of(KEYS)
}

/// Module that stages keys and values of a step.
const STAGED: CacheSlot = CacheSlot::new(
    "kv",
    &[
        ((KvLayout::Native, KvDtype::F16), "kv_staged_f16"),
        ((KvLayout::Native, KvDtype::Fp8), "kv_staged_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "kv_staged_int8"),
    ],
);

/// Returns the choices that only this kernel has, for `heads` query heads per workgroup; [`paged_decode::variant`] fills the
/// rest.
pub(super) fn of(shape: &KvShape, heads: u32) -> Variant {
    assert!(
        serves(shape),
        "{shape:?}: f32, heads of other than 32, 64 or 128, or blocks of no multiple of {KEYS}"
    );
    let spans = shape.head_dim / 16;
    Variant::new(&KERNEL)
        .with_matrices()
        .with_subgroups(1..=UNIT)
        .over_cache(STAGED, shape)
        .set(slot::SPANS, spans)
        .set(slot::ROWS, heads.div_ceil(8))
        .set(slot::LOADS, if shape.dtype.is_code() { spans / 2 } else { spans })
}
