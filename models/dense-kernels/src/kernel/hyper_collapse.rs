//! Merges residual streams into the input of a block, and computes the gates of its output (hyper-connections).

use attn_kernels::declare::{Listed, Sizes, levels};
use attn_kernels::kernel::flat_grid;
use attn_kernels::slot::{self, Flag, Number};
use attn_kernels::{Level, Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`HyperCollapseBuffers`] lists its bindings.
    "hyper_collapse"(HyperCollapseParams, HyperCollapseBuffers): Dense,
    grid: |params, _| flat_grid(params.rows),
    modules: [super::MODULES],
    listed: listed,
    variants: "before a block, or at the end of the streams; reductions by tree or subgroup",
    bytes: "`8 * streams * width` per row",
    cases: crate::self_test::hyper::collapse,
}

fn listed(_: &Sizes) -> Listed {
    let of = |level| {
        [("block", Reader::Block), ("head", Reader::Head)]
            .map(|(part, reader)| (part.into(), variant(4, reader, level)))
            .into()
    };
    levels(of)
}

params! {
    /// Uniform parameters.
    pub struct HyperCollapseParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of f32 of one stream of a row.
        pub width: u32,
        /// Number of rounds of Sinkhorn-Knopp; the first is of columns alone.
        pub rounds: u32,
        /// Epsilon of the norm over all streams of a row.
        pub norm_eps: f32,
        /// Epsilon added to the weights of streams, and to the sums that normalise gates.
        pub eps: f32,
    }
}

bindings! {
    /// Buffers of `hyper_collapse`.
    pub struct HyperCollapseBuffers(HyperCollapseParams) {
        /// Projection of each row's streams to mixing coefficients, not divided by the norm of the streams, `[rows, parts]`.
        read mixes: f32,
        /// Residual streams, `[rows, streams, width]`.
        read streams: f32,
        /// Base of each mixing coefficient, then a factor for each kind of coefficient.
        read affine: f32,
        /// Input of the block, `[rows, width]`.
        write out: f32,
        /// Gates, `[rows, streams + streams * streams]`: twice the sigmoid for each stream, then a doubly stochastic
        /// matrix (Sinkhorn-Knopp).
        write gates: f32,
        /// Zeros for the block to add to, `[rows, width]`; not written at the head.
        write block: f32,
    }
}

/// Number of lanes per row.
const LANES: u32 = 64;

/// Reader of the collapsed row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// A block of a layer, whose output is added to the streams through gates.
    Block,
    /// The output projection, at the end of the streams.
    Head,
}

/// Number of mixing coefficients of a row: one weight per stream, and for a block one gate per stream and one per pair of
/// streams.
#[must_use]
pub fn mixes(streams: u32, reader: Reader) -> u32 {
    match reader {
        Reader::Block => streams * (2 + streams),
        Reader::Head => streams,
    }
}

/// Residual streams.
pub(crate) const STREAMS: Number = Number("STREAMS");
/// Whether the output head reads the collapsed row.
pub(crate) const HEAD: Flag = Flag("HEAD");

/// Returns the variant for `streams` residual streams.
#[must_use]
pub fn variant(streams: u32, reader: Reader, level: Level) -> Variant {
    Variant::new(&KERNEL)
        .set(STREAMS, streams)
        .set(HEAD, reader == Reader::Head)
        .set(slot::WG, LANES)
        .by_level(slot::REDUCE, level)
}
