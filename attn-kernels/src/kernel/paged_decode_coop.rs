//! `paged_decode` with cooperative matrices: [`Lanes::Matrices`].
//!
//! Queries, keys, values and softmax weights go through matrices as f16, sums are f32. A step costs about the same for one query
//! head and for sixteen, and codes become f16 with two or three instructions a pair: that pays where many heads share
//! keys, and for caches of codes. Runs where
//! [`runs_single_units`](crate::profile::DeviceProfile::runs_single_units) says so.

#[cfg(doc)]
use super::paged_decode::Lanes;

use super::{KvDtype, KvShape, paged_decode};
use crate::profile::UNIT;
use crate::{Kernel, Variant};

/// Parameters and bindings are those of [`paged_decode`].
pub static KERNEL: Kernel = Kernel {
    name: "paged_decode_coop",
    role: crate::Role::Attention,
    wgsl: include_str!("../../wgsl/paged_decode_coop.wgsl"),
    ..paged_decode::KERNEL
};

/// Keys of a step.
pub(super) const KEYS: u32 = 16;

/// Query heads of a KV head that a workgroup takes, the rows of a matrix.
pub(super) const HEADS: u32 = 16;

/// Whether the kernel serves caches of this shape: all types but f32, heads of 32, 64 and 128, blocks of whole steps of 16 keys.
#[must_use]
pub fn serves(shape: &KvShape) -> bool {
    shape.dtype != KvDtype::F32
        && matches!(shape.head_dim, 32 | 64 | 128)
        && shape.block_size.is_multiple_of(KEYS)
}

/// Returns the choices of this kernel alone, for `heads` query heads a workgroup; [`paged_decode::variant`] fills the
/// rest.
pub(super) fn of(shape: &KvShape, heads: u32) -> Variant {
    assert!(
        serves(shape),
        "{shape:?}: f32, heads of other than 32, 64 or 128, or blocks of no multiple of {KEYS}"
    );
    let spans = shape.head_dim / 16;
    let kv = match shape.dtype {
        KvDtype::Fp8 => "kv_staged_fp8",
        KvDtype::Int8 => "kv_staged_int8",
        KvDtype::F16 | KvDtype::F32 => "kv_staged_f16",
    };
    Variant::new(&KERNEL)
        .with_matrices()
        .with_subgroups(1..=UNIT)
        .module("kv", kv)
        .size("SPANS", spans)
        .size("ROWS", heads.div_ceil(8))
        .size("LOADS", if shape.dtype.is_code() { spans / 2 } else { spans })
}
