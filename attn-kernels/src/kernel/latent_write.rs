//! Latents of a step into the cache of `mla_decode`.

use super::error::Launch;
use super::mla_decode::{Element, LatentShape};
use super::{KvDtype, LaunchError};
use crate::Variant;
use crate::declare::{Listed, Sizes, TYPES};
use crate::rows::KvWord;
use crate::slot::{self, OneOf};

kernel! {
    /// The kernel; [`LatentWriteBuffers`] lists its bindings.
    "latent_write"(LatentWriteParams, LatentWriteBuffers): Cache,
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
        /// Rows to write.
        pub rows: u32,
        /// f32 from one row of the source to the next.
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
        /// Cache of latents: `latent + rope` elements a slot, with codes also their scales.
        write latents: KvWord,
    }
}

const WG: u32 = 64;

/// Type of elements.
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

/// The kernel for one cache shape.
///
/// # Panics
/// When [`LatentShape::validate`] refuses it.
#[must_use]
pub fn variant(shape: &LatentShape) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL)
        .set(slot::LATENT, shape.latent)
        .set(slot::ROPE, shape.rope)
        .set(ELEMENT, shape.element())
        .constant("WG", WG);
    shape.sized(variant)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(shape: &LatentShape, rows: u32) -> [u32; 3] {
    super::flat_grid((rows * (shape.width() / 8)).div_ceil(WG))
}

/// Checks `slots`, one a row, against a cache of `num_blocks` blocks and a source of `kv_len` f32.
///
/// # Errors
/// A shape that no kernel takes, rows without a slot entry or past the source, or a slot outside the cache.
pub fn check(
    shape: &LatentShape,
    params: &LatentWriteParams,
    slots: &[i32],
    num_blocks: u32,
    kv_len: usize,
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    shape.validate()?;
    launch.at_most("rows", params.rows.into(), slots.len() as u64)?;
    let ends = [(params.latent_start, shape.latent), (params.rope_start, shape.rope)];
    let row_end =
        ends.map(|(start, width)| u64::from(start) + u64::from(width)).into_iter().fold(0, u64::max);
    for (entry, slot) in slots.iter().enumerate().take(params.rows as usize) {
        let Ok(slot) = u64::try_from(*slot) else { continue };
        let end = entry as u64 * u64::from(params.row_stride) + row_end;
        launch.entry("end in the source", entry, end, kv_len as u64)?;
        let slots = u64::from(num_blocks) * u64::from(shape.block_size);
        launch.entry("slot + 1", entry, slot + 1, slots)?;
    }
    Ok(())
}
