//! Edits logits in place before tokens are drawn: masks, biases, penalties.

use attn_kernels::declare::one;
use attn_kernels::{Variant, bindings, kernel, params};
use bytemuck::{Pod, Zeroable};

kernel! {
    /// The kernel; [`AdjustLogitsBuffers`] lists its bindings.
    "adjust_logits"(AdjustLogitsParams, AdjustLogitsBuffers): Sampling,
    grid: |params, _| [params.vocab.div_ceil(PART), params.rows, 1],
    modules: [super::MODULES],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`vocab / 8` and `4` per forbidden token of a masked row; `16` per edit, which each workgroup of the row reads",
    cases: crate::self_test::sample::adjust,
}

/// [`AdjustRow::mask`] of a row whose tokens are all allowed.
pub const NO_MASK: u32 = u32::MAX;

/// Number of tokens of one workgroup.
const PART: u32 = 8192;

params! {
    /// Uniform parameters.
    pub struct AdjustLogitsParams {
        /// Number of rows to edit.
        pub rows: u32,
        /// Number of logits a row.
        pub vocab: u32,
        /// Minus infinity, which WGSL cannot write.
        pub neg_inf: f32,
    }
}

bindings! {
    /// Buffers of `adjust_logits`.
    pub struct AdjustLogitsBuffers(AdjustLogitsParams) {
        /// Rows, `[rows]`.
        read rows: AdjustRow,
        /// Masks of allowed tokens, one bit per token; each row names the first word of its mask.
        read masks: u32,
        /// Three lists of `(token, operand)` for each row: suppressed tokens (no operand), biases (f32), counts (u32).
        read edits: [u32; 2],
        /// Logits, `[rows, vocab]`.
        write logits: f32,
    }
}

/// Changes of one row of logits. Its edits, `(token, operand)`, are in three consecutive lists, none of which has a
/// token twice.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct AdjustRow {
    /// Index of the row of logits.
    pub row: u32,
    /// First word of the row's mask, or [`NO_MASK`].
    pub mask: u32,
    /// Position of the first suppressed token.
    pub suppressed: u32,
    /// Position of the first bias; the operand of a bias is the bits of an f32.
    pub biases: u32,
    /// Position of the first token that occurred; its operand is its number of occurrences in the output.
    pub counts: u32,
    /// Position after the last edit.
    pub end: u32,
    /// Repetition penalty; 1 is off.
    pub repetition: f32,
    /// Presence penalty; 0 is off.
    pub presence: f32,
    /// Frequency penalty; 0 is off.
    pub frequency: f32,
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", 256).constant("PART", PART)
}
