//! Bounds logits in place.

use attn_kernels::declare::one;
use attn_kernels::kernel::flat_grid;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`SoftcapBuffers`] lists its bindings.
    "softcap"(SoftcapParams, SoftcapBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.cols).div_ceil(WG)),
    modules: [super::MODULES],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`8` per element",
    cases: crate::self_test::rows::softcap,
}

params! {
    /// Uniform parameters.
    pub struct SoftcapParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of columns.
        pub cols: u32,
        /// Bound of the magnitude of logits, above 0.
        pub cap: f32,
    }
}

bindings! {
    /// Buffers of `softcap`.
    pub struct SoftcapBuffers(SoftcapParams) {
        /// Logits, `[rows, cols]`.
        write x: f32,
    }
}

const WG: u32 = 64;

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}
