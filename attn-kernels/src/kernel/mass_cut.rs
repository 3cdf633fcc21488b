//! Finds the end of a selection that certifies a mass, block by block in the order of their bounds, without a
//! readback.
//!
//! [`ROUNDS`] alternate with `block_lse`: each finds the fewest blocks that can suffice by what is known of them, whose keys the
//! next `block_lse` then reads. Most selections settle in a few rounds, and what rounds are left then does nothing.

use crate::declare::one;
use crate::rows::DecodeRow;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`MassCutBuffers`] lists its bindings.
    "mass_cut"(MassCutParams, MassCutBuffers): Selection,
    grid: |params, _| [params.num_kv_heads, params.rows, 1],
    listed: |sizes| one(variant(sizes.num_heads / sizes.num_kv_heads)),
    variants: "one, by the heads of a group",
    bytes: "`4` per block and step of its search, `8 * H` per block, of which caches serve most",
    cases: crate::self_test::mass_cut::mass_cut,
}

params! {
    /// Uniform parameters.
    pub struct MassCutParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 between the scores, bounds or log-sum-exps of successive rows and heads.
        pub stride: u32,
        /// Number of tokens of a block.
        pub select_block: u32,
        /// Number of entries between successive lists: one more than the maximum number of blocks of a row.
        pub list_stride: u32,
        /// Flags of the round, from [`ROUNDS`].
        pub round: u32,
        /// Minimum ratio of the kept mass to the mass that dropped blocks may hold: `odds` of
        /// `sparse_select::certificate`.
        pub odds: f32,
        /// Rounding factor of the attention over the lists: [`slack`](super::mass_bound::slack).
        pub slack: f32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `mass_cut`.
    pub struct MassCutBuffers(MassCutParams) {
        /// Rows, `[n]`.
        read rows: DecodeRow,
        /// Scores, `[n, num_kv_heads, stride]` of block_score: larger ones come first, equal ones by index.
        read scores: f32,
        /// Bounds of `block_score`, `[n, num_heads, stride, 2]`.
        read bounds: f32,
        /// Log-sum-exps of the known blocks, `[n, num_heads, stride]`, from `block_lse`, for the second cut.
        read lses: f32,
        /// Two cuts of each list, `[n, num_kv_heads]`, each with key and index of a last block: of the blocks that are always
        /// kept, and of the known blocks.
        write cuts: [u32; 4],
        /// Lists, `[n, num_kv_heads]` of `list_stride` words: count, then ascending blocks.
        index lists: u32,
    }
}

/// Flag of the first round, in which only the last block of a row has a known log-sum-exp.
pub const FIRST: u32 = 1;
/// Flag that requests the log-sum-exps of all blocks.
pub const ALL: u32 = 2;
/// Flag that writes the lists.
pub const LIST: u32 = 4;

/// Flags of the rounds of a selection; `block_lse` runs before each round. A round that adds blocks lowers the
/// unknown mass to a share of `1 - mass`, so bounds that exceed the mass of blocks by n nats take about `n / ln(1 /
/// (1 - mass))` rounds. If that is more than the maximum, the last round knows all keys.
pub const ROUNDS: [u32; 8] = [FIRST, 0, 0, 0, 0, 0, ALL, LIST];

/// Returns the variant for `group` query heads per KV head.
#[must_use]
pub fn variant(group: u32) -> Variant {
    Variant::new(&KERNEL).set(slot::GROUP, group)
}
