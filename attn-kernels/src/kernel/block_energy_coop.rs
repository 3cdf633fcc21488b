//! Energies of key blocks with cooperative matrices: `block_energy` of [`Level::Coop`].
//!
//! Bindings, parameters and energies are those of [`block_energy`](super::block_energy); queries and mean keys are f16, sums f32.
//! Runs where [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::KvShape;
use crate::declare::one;
use crate::{Variant, slot};

kernel! {
    /// The kernel, with the parameters and bindings of [`block_energy`](super::block_energy).
    "block_energy_coop"(super::block_energy::BlockEnergyParams, super::block_energy::BlockEnergyBuffers): Selection,
    grid: |params, _| [params.num_heads, params.query_blocks, 1],
    listed: |sizes| one(variant(&sizes.f16(), 128)),
    variants: "by matrices, heads of up to 128",
    bytes: "as `block_energy`, query rows once",
    cases: crate::self_test::flashprefill::block_energy,
}

/// Whether the kernel serves caches of this shape, of any type, and blocks of `block` tokens: head sizes that are multiples of 16
/// up to 128, blocks of 32 to 256 tokens.
#[must_use]
pub fn serves(shape: &KvShape, block: u32) -> bool {
    shape.head_dim.is_multiple_of(16) && shape.head_dim <= 128 && matches!(block, 32 | 64 | 128 | 256)
}

/// Returns the variant for one cache shape; blocks of `block` tokens.
///
/// # Panics
/// When it does not serve them: see [`serves`].
#[must_use]
pub fn variant(shape: &KvShape, block: u32) -> Variant {
    shape.check();
    assert!(serves(shape, block), "{shape:?}, blocks of {block}");
    let subgroups = block / 32;
    Variant::new(&KERNEL)
        .with_matrices()
        .set(slot::SUBGROUPS, subgroups)
        .set(slot::SPANS, shape.head_dim / 16)
        .set(slot::LOADS, (shape.head_dim / 4).div_ceil(2 * subgroups))
}
