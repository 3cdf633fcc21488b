//! Writes latents of a step into the cache of `mla_decode`.

use super::KvDtype;
use super::mla_decode::{Element, LatentShape};
use crate::Variant;
use crate::declare::{Listed, Sizes, TYPES};
use crate::rows::KvWord;
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`LatentWriteBuffers`] lists its bindings.
    "latent_write"(LatentWriteParams, LatentWriteBuffers): Cache,
    grid: |params, variant| {
        let width = variant.number(slot::LATENT) + variant.number(slot::ROPE);
        super::flat_grid((params.rows * (width / 8)).div_ceil(WG))
    },
    listed: listed,
    variants: "f16, f32, fp8, int8",
    bytes: "`n * W * (4 + 2)`, `W` elements a latent",
    cases: crate::self_test::mla_decode::latent_write,
}

fn listed(sizes: &Sizes) -> Listed {
    let mut all: Listed =
        TYPES.map(|dtype| (dtype.name().into(), variant(&LatentShape::listed(sizes, dtype)))).into();
    all.push(("two-fp8-bf16".into(), variant(&LatentShape::listed_v4(sizes))));
    all
}

params! {
    /// Uniform parameters.
    pub struct LatentWriteParams {
        /// Number of rows to write.
        pub rows: u32,
        /// Number of f32 from one row of the source to the next.
        pub row_stride: u32,
        /// Offset of the compressed part in a row.
        pub latent_start: u32,
        /// Offset of the rope part in a row.
        pub rope_start: u32,
    }
}

bindings! {
    /// Buffers of `latent_write`.
    pub struct LatentWriteBuffers(LatentWriteParams) {
        /// Rows of `row_stride` f32: latents at `latent_start`, rope parts at `rope_start`.
        read kv: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Cache of latents. A slot has `latent + rope` elements, and their scales if they are codes.
        write latents: KvWord,
    }
}

const WG: u32 = 64;

/// Type of the elements of the cache.
pub(crate) const ELEMENT: OneOf<Element> = OneOf::new(
    "element",
    &[
        (Element::Of(KvDtype::F16), "latent_write_f16"),
        (Element::Of(KvDtype::F32), "latent_write_f32"),
        (Element::Of(KvDtype::Fp8), "latent_write_fp8"),
        (Element::Of(KvDtype::Int8), "latent_write_int8"),
        (Element::V4, "latent_write_v4"),
    ],
);

/// Returns the variant for one cache shape.
///
/// # Panics
/// When [`LatentShape::validate`] refuses it.
#[must_use]
pub fn variant(shape: &LatentShape) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL)
        .set(slot::LATENT, shape.latent)
        .set(slot::ROPE, shape.rope)
        .over_stored(ELEMENT, shape.element(), shape.stored())
        .constant("WG", WG);
    shape.sized(variant)
}
