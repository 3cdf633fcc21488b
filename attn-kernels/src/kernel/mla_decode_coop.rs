//! Absorbed multi-head latent attention with cooperative matrices: `mla_decode` of [`Level::Coop`].
//!
//! Bindings, parameters, rows and partials are those of [`mla_decode`](super::mla_decode): a latent is key and value of all
//! heads, so that scores and outputs of 32 heads are products of matrices. Queries, softmax weights and latents are f16 there,
//! sums f32. Runs where [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::KvDtype;
use super::attention::{Attention, Context};
use super::mla_decode::{self, LatentShape, MlaDecodeParams};
use crate::{Kernel, Variant};

/// Bindings: those of `mla_decode`.
pub static KERNEL: Kernel = Kernel {
    name: "mla_decode_coop",
    wgsl: include_str!("../../wgsl/mla_decode_coop.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<MlaDecodeParams>(),
    bindings: mla_decode::KERNEL.bindings,
};

/// Query heads of a workgroup.
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

/// The kernel over one cache: see [`mla_decode::variant`].
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant(shape: &LatentShape, num_heads: u32, attention: &Attention) -> Variant {
    let variant = attention.order(of(shape, num_heads), &shape.values(), 1);
    if attention.context == Context::Full { variant } else { variant.bindings(mla_decode::LISTED) }
}

/// The kernel over a window cache and a compressed cache: see [`mla_decode::variant_of_two`].
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant_of_two(shape: &LatentShape, num_heads: u32) -> Variant {
    of(shape, num_heads).module("latents", "latents_two").bindings(mla_decode::BINDINGS)
}

fn of(shape: &LatentShape, num_heads: u32) -> Variant {
    shape.check();
    assert!(
        serves(shape, num_heads),
        "{shape:?}, {num_heads} heads: f32, or sizes that matrices do not divide"
    );
    let element = match shape.dtype {
        KvDtype::Fp8 => "latent_coop_fp8",
        KvDtype::Int8 => "latent_coop_int8",
        KvDtype::F16 | KvDtype::F32 => "latent_coop_f16",
    };
    Variant::new(&KERNEL)
        .size("LATENT", shape.latent)
        .size("ROPE", shape.rope)
        .size("BLOCK_SIZE", shape.block_size)
        .size("KEY_SPANS", shape.width() / 64)
        .size("VALUE_SPANS", shape.latent / 128)
        .size("LOADS", (16 * shape.width() / 8).div_ceil(256))
        .module("element", element)
}

/// Workgroups for `rows` rows of at most `max_partitions` partitions.
#[must_use]
pub fn grid(num_heads: u32, rows: u32, max_partitions: u32) -> [u32; 3] {
    [max_partitions, num_heads / HEADS, rows]
}
