//! Flash attention of many query rows over paged KV with cooperative matrices: `paged_prefill` of [`Level::Coop`].
//!
//! Bindings, parameters, tiles and results are those of [`paged_prefill`]. Queries, softmax weights, keys and values
//! are f16, sums f32; codes of an 8-bit cache become f16 on the way. Runs where
//! [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::attention::Attention;
use super::paged_prefill;
use super::{KvDtype, KvShape};
use crate::{Kernel, Variant};

/// The kernel, with the parameters and bindings of [`paged_prefill`].
pub static KERNEL: Kernel = Kernel {
    name: "paged_prefill_coop",
    wgsl: include_str!("../../wgsl/paged_prefill_coop.wgsl"),
    ..paged_prefill::KERNEL
};

const SUBGROUPS: u32 = 4;

/// Query rows a workgroup serves: 32 a subgroup.
pub const TILE_ROWS: u32 = 32 * SUBGROUPS;

/// Whether the kernel serves caches of this shape: all types but f32, head sizes that are multiples of 16 up to 128.
#[must_use]
pub fn serves(shape: &KvShape) -> bool {
    shape.dtype != KvDtype::F32 && shape.head_dim.is_multiple_of(16) && shape.head_dim <= 128
}

/// The kernel for one cache shape.
///
/// # Panics
/// When it does not serve the shape: see [`serves`].
#[must_use]
pub fn variant(shape: &KvShape, attention: &Attention) -> Variant {
    shape.check();
    assert!(serves(shape), "{shape:?}: f32, or the head size is not a multiple of 16 up to 128");
    let spans = shape.head_dim / 16;
    let kv = match shape.dtype {
        KvDtype::Fp8 => "kv_coop_fp8",
        KvDtype::Int8 => "kv_coop_int8",
        KvDtype::F16 | KvDtype::F32 => "kv_coop_f16",
    };
    let variant = Variant::new(&KERNEL)
        .with_matrices()
        .module("kv", kv)
        .size("BLOCK_SIZE", shape.block_size)
        .size("SUBGROUPS", SUBGROUPS)
        .size("SPANS", spans)
        .size("LOADS", spans.div_ceil(SUBGROUPS));
    let variant = attention.skips(variant).size("PLAIN", (!attention.skip).into());
    attention.paged_ahead(attention.mask(attention.specialise(variant, shape, 16)))
}

/// Workgroups for `tiles` tiles of at most [`TILE_ROWS`] rows.
#[must_use]
pub fn grid(num_heads: u32, tiles: u32) -> [u32; 3] {
    [num_heads, tiles, 1]
}
