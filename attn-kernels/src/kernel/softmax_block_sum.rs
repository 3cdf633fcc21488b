//! Attention mass of blocks from strided scores: the third step of XAttention.

use super::find_blocks::{LANES, SOFTWARE_LANES};
use super::strided_qk;
use crate::profile::DeviceProfile;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`SoftmaxBlockSumBuffers`] lists its bindings.
    "softmax_block_sum"(SoftmaxBlockSumParams, SoftmaxBlockSumBuffers): Selection,
    grid: |params, _| [params.query_blocks, params.num_heads, 1],
    listed: |_| vec![(String::new(), variant(8, 128)), ("software".into(), software(8, 128))],
    variants: "one",
    bytes: "`8 * H` per row and 64 columns or block, and `4 * H` per query block and key block",
    cases: crate::self_test::xattn::softmax_block_sum,
}

params! {
    /// Uniform parameters; [`Estimate`](super::xattn::Estimate) fills them in. Rows and columns are strides.
    #[derive(PartialEq)]
    pub struct SoftmaxBlockSumParams {
        /// Number of rows of this dispatch, which are the rows of `parts`.
        pub rows: u32,
        /// Number of f32 from one row of parts to the next.
        pub part_stride: u32,
        /// Number of f32 from one query block's sums to the next.
        pub sum_stride: u32,
        /// First row of this dispatch.
        pub first_row: u32,
        /// First row that holds a real query.
        pub real_first: u32,
        /// Row after the last one that holds a real query.
        pub real_end: u32,
        /// Column at the position of row 0.
        pub key_start: u32,
        /// Number of columns.
        pub columns: u32,
        /// Flag: 1 if a row sees only the columns up to its own.
        pub causal: u32,
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of query blocks of the dispatch.
        pub query_blocks: u32,
    }
}

bindings! {
    /// Buffers of `softmax_block_sum`.
    pub struct SoftmaxBlockSumBuffers(SoftmaxBlockSumParams) {
        /// Parts, `[num_heads, rows, part_stride]` of strided_qk, for the rows of this dispatch.
        read parts: f32,
        /// Sums, `[num_heads, query blocks, sum_stride]`, up to the last key block that a query block sees.
        write sums: f32,
    }
}

/// Returns the variant for blocks of `block` tokens.
#[must_use]
pub fn variant(stride: u32, block: u32) -> Variant {
    with_lanes(stride, block, LANES)
}

/// Returns the variant in small workgroups, for software drivers: see [`find_blocks::software`](super::find_blocks::software).
#[must_use]
pub fn software(stride: u32, block: u32) -> Variant {
    with_lanes(stride, block, SOFTWARE_LANES).for_software()
}

/// The kernel for a device.
#[must_use]
pub fn best(profile: &DeviceProfile, stride: u32, block: u32) -> Variant {
    let software = software(stride, block);
    if profile.suits(&software) { software } else { variant(stride, block) }
}

fn with_lanes(stride: u32, block: u32, lanes: u32) -> Variant {
    let rows = block / stride;
    Variant::new(&KERNEL)
        .set(slot::ROWS, rows)
        .set(strided_qk::PART, strided_qk::part(rows))
        .set(slot::WG, lanes)
}
