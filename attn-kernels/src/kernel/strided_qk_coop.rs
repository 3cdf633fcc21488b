//! Strided antidiagonal scores with cooperative matrices: `strided_qk` of [`Level::Coop`].
//!
//! Bindings, parameters and parts are those of [`strided_qk`]; strides and the cache are f16, sums f32.
//! Runs where [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::{KvDtype, KvShape, strided_qk};
use crate::{Variant, slot};

kernel! {
    /// The kernel, with the parameters and bindings of [`strided_qk`].
    "strided_qk_coop"(super::strided_qk::StridedQkParams, super::strided_qk::StridedQkBuffers): Selection,
    grid: |params, variant| {
        let [rows, columns] = TILE;
        let all = params.kv_len.div_ceil(variant.number(slot::STRIDE));
        [params.rows.div_ceil(rows), all.div_ceil(columns), params.num_heads]
    },
    listed: |sizes| sizes.each(&[KvDtype::F16], |shape| variant(shape, 8, 128)),
    variants: "f16, by matrices",
    bytes: "as `strided_qk`, per tile of 128 x 256",
    cases: crate::self_test::xattn::strided_qk,
}

/// Number of rows, and of columns, of a workgroup's tile.
const TILE: [u32; 2] = [128, 256];

/// Whether the kernel serves this shape, stride and block: f16 keys, head sizes that are multiples of 16, strides that are
/// multiples of 4, pages of whole strides, blocks of at least 16 strides.
#[must_use]
pub fn serves(shape: &KvShape, stride: u32, block: u32) -> bool {
    shape.dtype == KvDtype::F16
        && shape.head_dim.is_multiple_of(16)
        && stride.is_multiple_of(4)
        && shape.block_size.is_multiple_of(stride)
        && block / stride >= 16
}

/// Returns the variant for one cache shape; blocks of `block` tokens.
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant(shape: &KvShape, stride: u32, block: u32) -> Variant {
    shape.check();
    assert!(serves(shape, stride, block), "{shape:?}, stride {stride}, block {block}");
    let width = strided_qk::part(block / stride) / 16;
    Variant::new(&KERNEL)
        .with_matrices()
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::STRIDE, stride)
        .set(slot::SPANS, shape.head_dim / 16)
        .set(slot::PARTS, 4 / width)
        .set(slot::WIDTH, width)
}
