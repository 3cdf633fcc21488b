//! Lower bounds of the attention mass that selections keep, the minimum over layers, from the shares of `mass_bound`.

use crate::Variant;
use crate::declare::one;

kernel! {
    /// The kernel; [`MassMergeBuffers`] lists its bindings.
    "mass_merge"(MassMergeParams, MassMergeBuffers): Selection,
    grid: |params, _| [params.rows, 1, 1],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4 * H` per row, layer and 1,024 blocks",
    cases: crate::self_test::mass_bound::merge_cases,
}

params! {
    /// Uniform parameters.
    pub struct MassMergeParams {
        /// Number of layers that have shares.
        pub layers: u32,
        /// Number of rows times the number of query heads.
        pub rows: u32,
        /// Number of f32 from one row and head's shares to the next, as in the run of `mass_bound`.
        pub share_stride: u32,
    }
}

bindings! {
    /// Buffers of `mass_merge`.
    pub struct MassMergeBuffers(MassMergeParams) {
        /// Shares, `[layers, rows, share_stride]`: the kept sum, negative if nothing is dropped, then the parts of the
        /// dropped sum.
        read shares: f32,
        /// Masses, `[rows]`; 1 if no layer drops anything.
        write masses: f32,
    }
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
