//! Adds up the partial sums that [`matmul_coop`](super::matmul_coop) leaves if it splits k.

use attn_kernels::{Variant, bindings, kernel, params};

use super::matmul::EPILOGUE;
use super::matmul::Epilogue;

kernel! {
    /// The kernel; [`SplitSumBuffers`] lists its bindings.
    "split_sum"(SplitSumParams, SplitSumBuffers): Dense,
    grid: |params, _| [params.cols.div_ceil(64), params.rows, 1],
    modules: [super::MODULES],
    listed: |_| vec![("store".into(), variant(Epilogue::Store)), ("add".into(), variant(Epilogue::Add))],
    variants: "store, add",
    bytes: "`4` per partial sum, `4` or `8` per result",
    cases: crate::self_test::matmul::split_sum,
}

params! {
    /// Uniform parameters.
    pub struct SplitSumParams {
        /// Number of rows of y.
        pub rows: u32,
        /// Number of columns.
        pub cols: u32,
        /// Number of partial sums per result.
        pub splits: u32,
        /// Number of f32 from one row of y to the next.
        pub y_stride: u32,
        /// First column of y.
        pub y_offset: u32,
    }
}

bindings! {
    /// Buffers of `split_sum`.
    pub struct SplitSumBuffers(SplitSumParams) {
        /// Sums of splits, `[splits, rows, cols]`.
        read partials: f32,
        /// Products, rows of `y_stride` f32, columns from `y_offset` on.
        write y: f32,
    }
}

/// Returns the variant for an epilogue of one part.
#[must_use]
pub fn variant(epilogue: Epilogue) -> Variant {
    let parts = epilogue.parts();
    assert_eq!(parts, 1, "partial sums of {epilogue:?} are of two parts");
    Variant::new(&KERNEL).set(EPILOGUE, epilogue)
}
