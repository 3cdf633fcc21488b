//! Sum of the branches of NSA, each multiplied by its gate.

use crate::declare::one;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`GateSumBuffers`] lists its bindings.
    "gate_sum"(GateSumParams, GateSumBuffers): Attention,
    grid: |params, variant| {
        let quads = variant.number(slot::HEAD_DIM) / 4;
        super::flat_grid((params.heads * quads).div_ceil(WG))
    },
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`16 * n * H * D`",
    cases: crate::self_test::lse_merge::gate_sum,
}

/// Number of branches, and of gates of a head.
pub const BRANCHES: u32 = 3;

params! {
    /// Uniform parameters.
    pub struct GateSumParams {
        /// Number of query heads of all rows.
        pub heads: u32,
    }
}

bindings! {
    /// Buffers of `gate_sum`.
    pub struct GateSumBuffers(GateSumParams) {
        /// Gates before the sigmoid, `[heads, 3]`.
        read gates: f32,
        /// Attention to compressed blocks, `[heads, head_dim]`.
        read compressed: f32,
        /// Attention to selected blocks, in the layout of the first branch.
        read selected: f32,
        /// Attention to the window, in the layout of the first branch.
        read window: f32,
        /// Sum of the three branches, in their layout.
        write out: f32,
    }
}

const WG: u32 = 64;

/// Returns the variant for one head size, a multiple of 4.
///
/// # Panics
/// When the head size is not.
#[must_use]
pub fn variant(head_dim: u32) -> Variant {
    assert!(head_dim.is_multiple_of(4), "head size {head_dim} is not a multiple of 4");
    Variant::new(&KERNEL).set(slot::HEAD_DIM, head_dim)
}
