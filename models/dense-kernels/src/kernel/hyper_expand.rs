//! Adds a block's output of a row to its residual streams (hyper-connections).

use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::Flag;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`HyperExpandBuffers`] lists its bindings.
    "hyper_expand"(HyperExpandParams, HyperExpandBuffers): Dense,
    grid: |params, _| flat_grid((params.rows * params.width).div_ceil(WG)),
    modules: [super::MODULES],
    listed: |_| vec![("streams".into(), variant(4, StreamForm::Add)), ("first".into(), variant(4, StreamForm::Begin))],
    variants: "a block's output, or the first streams",
    bytes: "`8 * streams * width` per row",
    cases: crate::self_test::hyper::expand,
}

params! {
    /// Uniform parameters.
    pub struct HyperExpandParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of f32 of one stream of a row.
        pub width: u32,
    }
}

bindings! {
    /// Buffers of `hyper_expand`.
    pub struct HyperExpandBuffers(HyperExpandParams) {
        /// Output of the block, `[rows, width]`.
        read block: f32,
        /// Gates as `hyper_collapse` wrote them, `[rows, streams + streams * streams]`.
        read gates: f32,
        /// Residual streams, `[rows, streams, width]`.
        write streams: f32,
    }
}

const WG: u32 = 64;

/// Effect of a block's output on the streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamForm {
    /// Every stream starts as a copy of the output.
    Begin,
    /// The streams are mixed, and the output is added through their gates.
    Add,
}

/// Whether the streams start as copies of the output.
pub(crate) const FIRST: Flag = Flag("FIRST");

/// Returns the variant for `streams` residual streams.
#[must_use]
pub fn variant(streams: u32, form: StreamForm) -> Variant {
    Variant::new(&KERNEL)
        .set(super::hyper_collapse::STREAMS, streams)
        .set(FIRST, form == StreamForm::Begin)
        .constant("WG", WG)
}
