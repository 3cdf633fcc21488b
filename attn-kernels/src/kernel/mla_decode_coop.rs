//! Absorbed multi-head latent attention with cooperative matrices: `mla_decode` of [`Level::Coop`].
//!
//! Bindings, parameters, rows and partials are those of [`mla_decode`]: a latent is key and value of all
//! heads, so that scores and outputs of 32 heads are products of matrices. Queries, softmax weights and latents are f16 there,
//! sums f32. Runs where [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::KvDtype;
use super::attention::{Attention, Context};
use super::mla_decode::{self, Element, LatentShape, MlaDecodeParams};
use crate::declare::{Listed, Sizes, TYPES};
use crate::profile::{DeviceProfile, Registers};
use crate::slot::{self, Number, OneOf};
use crate::{Level, Variant};

kernel! {
    /// The kernel, with the parameters and bindings of [`mla_decode`].
    "mla_decode_coop"(MlaDecodeParams, super::mla_decode::MlaDecodeBuffers): Attention,
    grid: |params, _| [params.partitions(), params.num_heads / HEADS, params.rows],
    listed: listed,
    variants: "f16, fp8, int8, as `mla_decode`, by matrices",
    bytes: "`2 * L * W` per row and 32 heads, twice that by subgroups of 64",
    cases: crate::self_test::mla_decode::cases,
}

/// Lists variants only in the sizes of DeepSeek.
fn listed(_: &Sizes) -> Listed {
    let sizes = Sizes::of_heads(128);
    let mut all = Listed::new();
    for dtype in TYPES {
        let shape = LatentShape::listed(&sizes, dtype);
        if !serves(&shape, 128) {
            continue;
        }
        let two = LatentShape { rope: 0, ..shape };
        let tokens = Attention { context: Context::Tokens, ..Attention::default() };
        let name = dtype.name();
        all.push((name.into(), variant(&shape, 128, &Attention::default())));
        all.push((format!("tokens-{name}"), variant(&shape, 128, &tokens)));
        all.push((format!("two-{name}"), variant_of_two(&two, 128)));
    }
    all.push(("two-fp8-bf16".into(), variant_of_two(&LatentShape::listed_v4(&sizes), 64)));
    all
}

/// Number of query heads of a workgroup.
const HEADS: u32 = 32;

/// Whether the kernel serves this cache and `num_heads` query heads: all types but f32, latents that are multiples of 128,
/// keys that are multiples of 64, heads that are multiples of 32.
#[must_use]
pub fn serves(shape: &LatentShape, num_heads: u32) -> bool {
    shape.dtype != KvDtype::F32
        && shape.latent.is_multiple_of(128)
        && shape.width().is_multiple_of(64)
        && num_heads.is_multiple_of(HEADS)
}

/// Returns the variant over one cache: see [`mla_decode::variant`].
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant(shape: &LatentShape, num_heads: u32, attention: &Attention) -> Variant {
    let variant = attention.order(of(shape, num_heads), &shape.values(), 1);
    mla_decode::one_cache(variant, attention)
}

/// The kernel over a window cache and a compressed cache: see [`mla_decode::variant_of_two`].
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant_of_two(shape: &LatentShape, num_heads: u32) -> Variant {
    mla_decode::two_caches(of(shape, num_heads))
}

/// Type of the elements of the cache.
pub(crate) const ELEMENT: OneOf<Element> = OneOf::new(
    "element",
    &[
        (Element::Of(KvDtype::F16), "latent_coop_f16"),
        (Element::Of(KvDtype::Fp8), "latent_coop_fp8"),
        (Element::Of(KvDtype::Int8), "latent_coop_int8"),
        (Element::V4, "latent_coop_v4"),
    ],
);
/// Number of pieces of a key, of 64 elements each.
const KEY_SPANS: Number = Number("KEY_SPANS");
/// Number of pieces of a value, of 128 elements each.
const VALUE_SPANS: Number = Number("VALUE_SPANS");

fn of(shape: &LatentShape, num_heads: u32) -> Variant {
    shape.check();
    assert!(
        serves(shape, num_heads),
        "{shape:?}, {num_heads} heads: f32, or sizes that matrices do not divide"
    );
    let variant = Variant::new(&KERNEL)
        .with_matrices()
        .set(slot::LATENT, shape.latent)
        .set(slot::ROPE, shape.rope)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(KEY_SPANS, shape.width() / 64)
        .set(VALUE_SPANS, shape.latent / 128)
        .set(slot::LOADS, (16 * shape.width() / 8).div_ceil(256))
        .over_stored(ELEMENT, shape.element(), shape.stored());
    shape.sized(variant)
}

/// The best kernel for one cache and number of query heads: `mla_decode_coop` if it serves them and the device runs
/// it, else `mla_decode`. Both take the same bindings, parameters and rows, so they can be exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MlaKernel {
    shape: LatentShape,
    num_heads: u32,
    coop: bool,
    registers: Registers,
}

impl MlaKernel {
    /// Chooses the kernel for a cache of `shape` on a device. The profile says whether [results may be rounded to
    /// f16](DeviceProfile::rounded).
    #[must_use]
    pub fn new(shape: &LatentShape, num_heads: u32, profile: &DeviceProfile) -> Self {
        let coop = serves(shape, num_heads) && profile.trusts(&KERNEL, Level::Coop, shape.dtype);
        Self { shape: *shape, num_heads, coop, registers: profile.registers }
    }

    /// Level of the kernel that was chosen.
    #[must_use]
    pub fn level(&self) -> Level {
        if self.coop { Level::Coop } else { Level::Baseline }
    }

    /// Returns the variant over one cache.
    #[must_use]
    pub fn variant(&self, attention: &Attention) -> Variant {
        match self.coop {
            true => variant(&self.shape, self.num_heads, attention),
            false => mla_decode::variant(&self.shape, self.num_heads, attention, self.registers),
        }
    }

    /// Returns the variant over a window cache and a compressed cache.
    #[must_use]
    pub fn variant_of_two(&self) -> Variant {
        match self.coop {
            true => variant_of_two(&self.shape, self.num_heads),
            false => mla_decode::variant_of_two(&self.shape, self.num_heads, self.registers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// A lane holds queries, outputs and latents on their way: of f16 as pairs, all else as f32.
    #[test]
    fn lanes_with_few_registers_hold_half_the_channels() {
        let few = DeviceProfile::H200.with_matrices(None).registers(Registers::Few);
        for dtype in [KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8] {
            let shape = LatentShape { latent: 512, rope: 64, block_size: 64, dtype, plain: 0 };
            let words = if dtype == KvDtype::F32 { 2 } else { 1 };
            let of = |profile| {
                let kernel = MlaKernel::new(&shape, 128, profile);
                let params = MlaDecodeParams {
                    num_heads: 128,
                    max_partitions: 5,
                    rows: 3,
                    ..MlaDecodeParams::default()
                };
                let variant = kernel.variant(&Attention::default());
                assert!(profile.registers.suit(&variant) && variant.level == Level::Baseline);
                let slots = [slot::HEADS, mla_decode::KEY_WORDS, mla_decode::VALUE_WORDS]
                    .map(|slot| variant.get(slot));
                (slots.map(Option::unwrap_or_default), variant.grid(&params))
            };
            assert_eq!(of(&few), ([8, words, words], [5, 16, 3]));
            let many = few.registers(Registers::Many);
            assert_eq!(of(&many), ([16, 2 * words, 2 * words], [5, 8, 3]));
        }
    }

    #[test]
    fn matrices_take_the_shapes_that_they_divide() {
        let mut drawn = String::new();
        for (model, latent, rope, num_heads) in [
            ("DeepSeek V2 Lite", 512, 64, 16),
            ("DeepSeek V3.2", 512, 64, 128),
            ("DeepSeek V4", 512, 0, 64),
            ("tiny", 128, 64, 32),
            ("tiny, odd", 64, 64, 32),
        ] {
            for dtype in [KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8] {
                let shape = LatentShape { latent, rope, block_size: 64, dtype, plain: 0 };
                let [runs, not] = [DeviceProfile::H200, DeviceProfile::WEBGPU]
                    .map(|profile| MlaKernel::new(&shape, num_heads, &profile));
                assert_eq!(not.level(), Level::Baseline);
                let two = LatentShape { rope: 0, ..shape };
                let two = MlaKernel::new(&two, num_heads, &DeviceProfile::H200).variant_of_two();
                let variant = runs.variant(&Attention::default());
                let params = MlaDecodeParams { num_heads, rows: 1, ..MlaDecodeParams::default() };
                let grid = variant.grid(&params)[1];
                writeln!(
                    drawn,
                    "{model}, {dtype:?}: {} by {grid}, two caches {}",
                    variant.kernel.name, two.kernel.name
                )
                .unwrap();
            }
        }
        insta::assert_snapshot!(drawn, @r"
        DeepSeek V2 Lite, F16: mla_decode by 1, two caches mla_decode
        DeepSeek V2 Lite, F32: mla_decode by 1, two caches mla_decode
        DeepSeek V2 Lite, Fp8: mla_decode by 1, two caches mla_decode
        DeepSeek V2 Lite, Int8: mla_decode by 1, two caches mla_decode
        DeepSeek V3.2, F16: mla_decode_coop by 4, two caches mla_decode_coop
        DeepSeek V3.2, F32: mla_decode by 8, two caches mla_decode
        DeepSeek V3.2, Fp8: mla_decode_coop by 4, two caches mla_decode_coop
        DeepSeek V3.2, Int8: mla_decode_coop by 4, two caches mla_decode_coop
        DeepSeek V4, F16: mla_decode_coop by 2, two caches mla_decode_coop
        DeepSeek V4, F32: mla_decode by 4, two caches mla_decode
        DeepSeek V4, Fp8: mla_decode_coop by 2, two caches mla_decode_coop
        DeepSeek V4, Int8: mla_decode_coop by 2, two caches mla_decode_coop
        tiny, F16: mla_decode_coop by 1, two caches mla_decode_coop
        tiny, F32: mla_decode by 2, two caches mla_decode
        tiny, Fp8: mla_decode_coop by 1, two caches mla_decode_coop
        tiny, Int8: mla_decode_coop by 1, two caches mla_decode_coop
        tiny, odd, F16: mla_decode by 2, two caches mla_decode
        tiny, odd, F32: mla_decode by 2, two caches mla_decode
        tiny, odd, Fp8: mla_decode by 2, two caches mla_decode
        tiny, odd, Int8: mla_decode by 2, two caches mla_decode
        ");
    }
}
