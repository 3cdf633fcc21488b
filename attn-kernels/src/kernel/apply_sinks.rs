//! Attention sinks on the output of a kernel that returns log-sum-exp.

use crate::declare::one;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`ApplySinksBuffers`] lists its bindings.
    "apply_sinks"(ApplySinksParams, ApplySinksBuffers): Attention,
    grid: |params, variant| {
        let quads = variant.number(slot::HEAD_DIM) / 4;
        super::flat_grid((params.rows * params.num_heads * quads).div_ceil(WG))
    },
    listed: |sizes| one(variant(sizes.head_dim)),
    variants: "one",
    bytes: "`8 * n * H * D`",
    cases: crate::self_test::apply_sinks::cases,
}

params! {
    /// Uniform parameters.
    pub struct ApplySinksParams {
        /// First row.
        pub first_row: u32,
        /// Number of rows.
        pub rows: u32,
        /// Number of query heads.
        pub num_heads: u32,
    }
}

bindings! {
    /// Buffers of `apply_sinks`.
    pub struct ApplySinksBuffers(ApplySinksParams) {
        /// Log-sum-exps (natural logarithm), `[rows, num_heads]`.
        read lse: f32,
        /// Logits of the sinks, `[num_heads]`.
        read sinks: f32,
        /// Attention, `[rows, num_heads, head_dim]`.
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
    Variant::new(&KERNEL).set(slot::HEAD_DIM, head_dim).constant("WG", WG)
}
