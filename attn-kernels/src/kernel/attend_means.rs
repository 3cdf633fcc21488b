//! Attention to the means of unlisted blocks, added to the attention to listed blocks: the correction of `FlashPrefill`.

use super::{KvShape, paged_prefill};
use crate::declare::one;
use crate::profile::Registers;
use crate::{Variant, slot};

kernel! {
    /// The kernel; [`AttendMeansBuffers`] lists its bindings.
    "attend_means"(AttendMeansParams, AttendMeansBuffers): Attention,
    grid: |params, variant| {
        let row_tiles = variant.number(slot::BLOCK).div_ceil(variant.number(slot::ROWS));
        [params.num_heads, params.query_blocks * row_tiles, 1]
    },
    listed: |sizes| Registers::listed(|registers| one(variant(&sizes.f16(), sizes.select(128), registers))),
    variants: "one, by *registers*",
    bytes: "`8 * D` per block left out for each 64 rows of a head, 32 with few registers, and `16 * D` per row and head",
    cases: crate::self_test::flashprefill::attend_means,
}

params! {
    /// Uniform parameters; [`FlashPrefill`](super::flashprefill::FlashPrefill) fills them in.
    #[derive(PartialEq)]
    pub struct AttendMeansParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of f32 from one query row to the next.
        pub q_stride: u32,
        /// Row of q, and of the output, of the chunk's first query.
        pub q_first: u32,
        /// Number of queries of the chunk.
        pub q_len: u32,
        /// Number of tokens of the first query block that precede the chunk's first query.
        pub front: u32,
        /// Index of the key block that contains the chunk's first query.
        pub current: u32,
        /// Number of blocks between the means of successive KV heads.
        pub mean_stride: u32,
        /// Number of u32 from one list to the next.
        pub list_stride: u32,
        /// First list of the chunk.
        pub first_list: u32,
        /// Factor on scores.
        pub scale: f32,
        /// Number of query blocks of the dispatch.
        pub query_blocks: u32,
    }
}

bindings! {
    /// Buffers of `attend_means`.
    pub struct AttendMeansBuffers(AttendMeansParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, head_dim]` from 0.
        read q: f32,
        /// Means of keys, `[num_kv_heads, mean_stride, head_dim]` of `block_means`.
        read mean_keys: f32,
        /// Means of values, in the layout of the means of keys.
        read mean_values: f32,
        /// Lists of blocks, `[query blocks, num_kv_heads]`: count, then ascending blocks.
        read selected: u32,
        /// Output, rows of `[num_heads, head_dim]`: before the dispatch, attention to the listed blocks; after it, to
        /// all blocks.
        write out: f32,
        /// Log-sum-exps of the output (natural logarithm), rows of `[num_heads]`: before the dispatch, of the listed
        /// blocks; after it, of all.
        write lse: f32,
    }
}

/// Returns the number of rows of a workgroup, and how many times as many lanes share a row as in [`paged_prefill`].
/// Queries and outputs of 32 channels leave an Apple M1 no registers for the means of four blocks.
const fn division(registers: Registers) -> (u32, u32) {
    match registers {
        Registers::Few => (32, 2),
        Registers::Many => (64, 1),
    }
}

/// Returns the variant for one cache shape, blocks of `block` tokens and lanes with `registers`.
///
/// # Panics
/// When a block is not a power of two of pages.
#[must_use]
pub fn variant(shape: &KvShape, block: u32, registers: Registers) -> Variant {
    shape.check();
    assert!(block.is_power_of_two(), "a block of {block} tokens is not a power of two");
    let (rows, times) = division(registers);
    Variant::new(&KERNEL)
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK, block)
        .set(slot::SHARE, paged_prefill::lanes_per_row(shape.head_dim) * times)
        .set(slot::ROWS, rows)
        .for_registers(registers)
}
