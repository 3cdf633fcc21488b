//! Energies of key blocks with cooperative matrices: `block_energy` of [`Level::Coop`].
//!
//! Bindings, parameters and energies are those of [`block_energy`]; queries and mean keys are f16, sums f32. Runs where
//! [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::KvShape;
use super::block_energy::{self, BlockEnergyParams};
use crate::{Kernel, Variant};

/// The kernel, with the parameters and bindings of [`block_energy`].
pub static KERNEL: Kernel = Kernel {
    name: "block_energy_coop",
    wgsl: include_str!("../../wgsl/block_energy_coop.wgsl"),
    ..block_energy::KERNEL
};

/// Whether the kernel serves caches of this shape, of any type, and blocks of `block` tokens: head sizes that are multiples of 16
/// up to 128, blocks of 32 to 256 tokens.
#[must_use]
pub fn serves(shape: &KvShape, block: u32) -> bool {
    shape.head_dim.is_multiple_of(16) && shape.head_dim <= 128 && matches!(block, 32 | 64 | 128 | 256)
}

/// The kernel for one cache shape; blocks of `block` tokens.
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
        .size("SUBGROUPS", subgroups)
        .size("SPANS", shape.head_dim / 16)
        .size("LOADS", (shape.head_dim / 4).div_ceil(2 * subgroups))
}

/// Workgroups for `query_blocks` query blocks.
#[must_use]
pub fn grid(params: &BlockEnergyParams, query_blocks: u32) -> [u32; 3] {
    [params.num_heads, query_blocks, 1]
}
