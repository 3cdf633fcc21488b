//! Strided antidiagonal scores for software drivers: `strided_qk` with lanes that broadcast keys to each other.
//!
//! Bindings, parameters and parts are those of [`strided_qk`]. Its tiles go through workgroup memory, which lavapipe reads lane
//! by lane as it does buffers.

use super::strided_qk::{self, StridedQkParams};
use super::{KvDtype, KvShape};
use crate::Variant;
use crate::declare::{FLOATS, Listed, Sizes};
use crate::slot::{self, Number, OneOf};

kernel! {
    /// The kernel, with the parameters and bindings of [`strided_qk`].
    "strided_qk_broadcast"(super::strided_qk::StridedQkParams, super::strided_qk::StridedQkBuffers): Selection,
    grid: grid,
    listed: listed,
    variants: "f16, f32; lanes *broadcast* what they load",
    bytes: "as `strided_qk`, per tile of 64 x 16",
    cases: crate::self_test::xattn::strided_qk,
}

fn listed(sizes: &Sizes) -> Listed {
    let served = FLOATS.into_iter().filter(|dtype| serves(&sizes.cache(*dtype), 8, 128));
    sizes.each(&served.collect::<Vec<_>>(), |shape| variant(shape, 8, 128))
}

/// Number of lanes of a subgroup: eight lanes have columns of their own, and a broadcast reaches all of a subgroup.
const LANES: u32 = 8;

/// Number of columns of a lane.
const COLUMNS: u32 = 16;

/// Elements that lanes broadcast at once.
const SPAN: OneOf<KvDtype> =
    OneOf::new("span", &[(KvDtype::F16, "key_span_f16"), (KvDtype::F32, "key_span_f32")]);

/// Number of groups of eight lanes of a workgroup.
const EIGHTS: u32 = 8;

/// Whether the kernel serves this shape, stride and block: head sizes that are multiples of 8 with keys in f32, or of
/// 16 in f16; pages of whole strides, blocks of at most 16 strides.
#[must_use]
pub fn serves(shape: &KvShape, stride: u32, block: u32) -> bool {
    let span = match shape.dtype {
        KvDtype::F16 => 16,
        KvDtype::F32 => 8,
        KvDtype::Fp8 | KvDtype::Int8 => return false,
    };
    shape.head_dim.is_multiple_of(span)
        && shape.block_size.is_multiple_of(stride)
        && strided_qk::part(block / stride) <= COLUMNS
}

/// Returns the variant for one cache shape; blocks of `block` tokens.
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant(shape: &KvShape, stride: u32, block: u32) -> Variant {
    assert!(serves(shape, stride, block), "{shape:?}, stride {stride}, block {block}");
    strided_qk::specialised(Variant::new(&KERNEL), shape, stride, block)
        .set(Number("COLUMNS"), COLUMNS)
        .set(SPAN, shape.dtype)
        .with_subgroups(LANES..=LANES)
        .for_software()
}

fn grid(params: &StridedQkParams, variant: &Variant) -> [u32; 3] {
    let tall = params.rows.div_ceil(8).next_power_of_two().min(EIGHTS);
    let columns = COLUMNS * (EIGHTS / tall);
    let all = params.kv_len.div_ceil(variant.number(slot::STRIDE));
    [all.div_ceil(columns), params.rows.div_ceil(8 * tall), params.num_heads]
}
