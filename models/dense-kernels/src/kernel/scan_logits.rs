//! Reads rows of logits once, so that later kernels only need to look at blocks with large ones.

use attn_kernels::declare::one;
use attn_kernels::slot::{self, Number};
use attn_kernels::{Kernel, Variant, bindings, kernel, params};

use checkpoint::sampling::Spec;

kernel! {
    /// The kernel; [`ScanLogitsBuffers`] lists its bindings.
    "scan_logits"(ScanLogitsParams, ScanLogitsBuffers): Sampling,
    grid: |params, _| [params.parts, params.rows, 1],
    modules: [super::MODULES],
    listed: |_| one(variant(TOKENS_PER_LANE)),
    variants: "as `sample`",
    bytes: "`4 * vocab` per row, twice where tokens are drawn without min-p and top-k",
    cases: crate::self_test::sample::scan,
}

/// Number of lanes of a workgroup, each with a block of a part.
pub const LANES: u32 = 256;

/// Number of tokens of a block: few, so that a row has many workgroups, and later kernels read few logits per block.
pub const TOKENS_PER_LANE: u32 = 32;

/// Number of tokens of a block on a software driver, which spends its time on barriers.
pub const TOKENS_PER_LANE_ON_CPU: u32 = 256;

params! {
    /// Uniform parameters.
    pub struct ScanLogitsParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of logits a row.
        pub vocab: u32,
        /// Number of parts of a row.
        pub parts: u32,
        /// Flag for drawing tokens: 1 if tokens are drawn from the rows by specs; 0 if there are no specs.
        pub draws: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
    }
}

bindings! {
    /// Buffers of `scan_logits`.
    pub struct ScanLogitsBuffers(ScanLogitsParams) {
        /// Logits, `[rows, vocab]`.
        read logits: f32,
        /// Sampling parameters of each row, `[rows]`; only read if tokens are drawn.
        read specs: Spec,
        /// Largest logit of each block of logits, `[rows, parts * lanes]`.
        write maxima: f32,
        /// Largest logit, score of the candidate, mass and 0 of each part, `[rows, parts]`.
        write values: [f32; 4],
        /// Ids of the largest logit and of the candidate, `[rows, parts]`.
        index ids: [u32; 2],
    }
}

/// Number of tokens of a lane.
pub(crate) const EACH: Number = Number("TOKENS_PER_LANE");

/// Returns the variant, for blocks of `each` tokens.
#[must_use]
pub fn variant(each: u32) -> Variant {
    sized(&KERNEL, each)
}

/// Returns the variant of `kernel` for blocks of `each` tokens.
pub(super) fn sized(kernel: &'static Kernel, each: u32) -> Variant {
    Variant::new(kernel).set(EACH, each).set(slot::WG, LANES)
}

/// Number of parts of a row.
#[must_use]
pub fn parts(vocab: u32, each: u32) -> u32 {
    vocab.div_ceil(each * LANES)
}
