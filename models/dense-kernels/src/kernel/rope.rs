//! Applies rotary position embedding in place.

use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::kernel::flat_grid;
use attn_kernels::rows::Angle;
use attn_kernels::slot::{self, Flag};
use attn_kernels::{Variant, bindings, kernel, params};

use crate::Pairing;

kernel! {
    /// The kernel; [`RopeBuffers`] lists its bindings.
    "rope"(RopeParams, RopeBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.heads * params.pairs).div_ceil(WG)),
    modules: [super::MODULES],
    listed: listed,
    variants: "halves or interleaved",
    bytes: "`8 * 2 * pairs` per head",
    cases: crate::self_test::rows::rope,
}

fn listed(sizes: &Sizes) -> Listed {
    [("halves", Pairing::Halves), ("interleaved", Pairing::Interleaved)]
        .map(|(part, pairing)| (part.into(), variant(sizes.head_dim, pairing)))
        .into()
}

params! {
    /// Uniform parameters.
    pub struct RopeParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of heads to rotate: queries, then keys.
        pub heads: u32,
        /// Number of f32 from one row to the next.
        pub stride: u32,
        /// Number of pairs of dimensions to rotate in each head.
        pub pairs: u32,
        /// First dimension to rotate of the first head of a row.
        pub first: u32,
        /// Flag: 1 for the inverse rotation.
        pub back: u32,
    }
}

bindings! {
    /// Buffers of `rope`.
    pub struct RopeBuffers(RopeParams) {
        /// Cosine and sine of each pair of each row, `[rows, pairs]`, computed on the host in double precision.
        read cs: Angle,
        /// Rows of `stride` f32 with `heads` heads, which rotate from dimension `first` on.
        write x: f32,
    }
}

const WG: u32 = 64;

/// Whether the elements of a pair are adjacent.
pub(crate) const INTERLEAVED: Flag = Flag("INTERLEAVED");

/// Returns the variant for one head size and pairing.
#[must_use]
pub fn variant(head_dim: u32, pairing: Pairing) -> Variant {
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, head_dim)
        .set(INTERLEAVED, pairing == Pairing::Interleaved)
        .constant("WG", WG)
}
