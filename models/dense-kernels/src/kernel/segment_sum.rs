//! Sums consecutive rows: embeddings by last-token and mean pooling.

use attn_kernels::declare::one;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`SegmentSumBuffers`] lists its bindings.
    "segment_sum"(SegmentSumParams, SegmentSumBuffers): Dense,
    grid: |params, _| [params.quads.div_ceil(QUADS), params.segments, 1],
    modules: [super::MODULES],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`16 * quads * (len + 1)` per segment",
    cases: crate::self_test::rows::segment_sum,
}

params! {
    /// Uniform parameters.
    pub struct SegmentSumParams {
        /// Number of segments.
        pub segments: u32,
        /// Number of vec4 of a row.
        pub quads: u32,
    }
}

bindings! {
    /// Buffers of `segment_sum`.
    pub struct SegmentSumBuffers(SegmentSumParams) {
        /// Rows, `[rows, 4 * quads]`.
        read x: f32,
        /// First row and number of rows of each segment.
        read segments: [u32; 2],
        /// Sums, `[segments, 4 * quads]`.
        write out: f32,
    }
}

/// Number of vec4 of a row that a workgroup sums.
const QUADS: u32 = 16;

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
