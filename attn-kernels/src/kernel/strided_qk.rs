//! Strided antidiagonal scores over a paged K cache, reduced while they are made: the second step of XAttention.

use super::stride_queries::StrideType;
use super::{KvShape, stride_queries, strided_qk_broadcast, strided_qk_coop};
use crate::Variant;
use crate::declare::TYPES;
use crate::profile::DeviceProfile;
use crate::rows::{KvWord, PhysicalBlock};
use crate::slot::{self, Number};

kernel! {
    /// The kernel; [`StridedQkBuffers`] lists its bindings.
    "strided_qk"(StridedQkParams, StridedQkBuffers): Selection,
    grid: |params, variant| {
        let columns = params.kv_len.div_ceil(variant.number(slot::STRIDE));
        [columns.div_ceil(TILE), params.rows.div_ceil(TILE), params.num_heads]
    },
    listed: |sizes| sizes.each(&TYPES, |shape| variant(shape, 8, 128)),
    variants: "f16, f32, fp8, int8",
    bytes: "`4 * H` per row and block of columns; keys and queries once per tile of 64 x 64",
    cases: crate::self_test::xattn::strided_qk,
}

params! {
    /// Uniform parameters; [`Estimate`](super::xattn::Estimate) fills them in.
    #[derive(PartialEq)]
    pub struct StridedQkParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// First row of this dispatch, in strides of queries.
        pub first_row: u32,
        /// Number of rows of this dispatch.
        pub rows: u32,
        /// Column at the position of row 0, in strides of keys.
        pub key_start: u32,
        /// Number of keys.
        pub kv_len: u32,
        /// First entry of the block table.
        pub table: u32,
        /// Number of f32 from one row of parts to the next.
        pub part_stride: u32,
        /// Factor on scores before a base-2 softmax, `log2(e) / (sqrt(head_dim) * stride * norm)`.
        pub scale: f32,
        /// Flag: 1 if a row sees only the columns up to its own.
        pub causal: u32,
    }
}

bindings! {
    /// Buffers of `strided_qk`.
    pub struct StridedQkBuffers(StridedQkParams) {
        /// Rows of strides of [`stride_queries`]: in f16 for `strided_qk_coop`, else in f32.
        read strides: u32,
        /// Cache of keys, in the layout of `KvShape`.
        read k_cache: KvWord,
        /// Block tables of all rows.
        read tables: PhysicalBlock,
        /// Parts, `[num_heads, rows, part_stride]`: log2 of the sum of 2^(scale * score) over PART columns, LOWEST if none is
        /// seen; not written if a whole tile is masked.
        write parts: f32,
    }
}

/// Number of rows, and of columns, of a workgroup's tile.
pub const TILE: u32 = 64;

/// Number of columns that one element of the parts covers, with `columns` columns per block.
#[must_use]
pub fn part(columns: u32) -> u32 {
    columns.min(TILE)
}

/// Number of columns of a part.
pub(crate) const PART: Number = Number("PART");

/// Returns the variant for one cache shape; blocks of `block` tokens.
///
/// # Panics
/// When `block / stride` is not a power of two from 4 on.
#[must_use]
pub fn variant(shape: &KvShape, stride: u32, block: u32) -> Variant {
    specialised(Variant::new(&KERNEL), shape, stride, block)
}

/// Fills the slots of the shape, for any kernel that has them.
pub(crate) fn specialised(variant: Variant, shape: &KvShape, stride: u32, block: u32) -> Variant {
    shape.check();
    let columns = block / stride;
    assert!(
        block.is_multiple_of(stride) && columns >= 4 && columns.is_power_of_two(),
        "blocks of {block} tokens are not a power of two from 4 on of strides of {stride}"
    );
    variant
        .set(slot::HEAD_DIM, shape.head_dim)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::STRIDE, stride)
        .set(PART, part(columns))
        .over_cache(super::KEYS, shape)
}

/// The kernels that score chunks on one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scorer {
    /// Scoring kernel: `strided_qk_coop`, `strided_qk_broadcast` or `strided_qk`.
    pub scores: Variant,
    /// Variant of `stride_queries`, which runs before the scoring kernel.
    pub queries: Variant,
    /// Number of words of a row of strides.
    pub row_words: u32,
}

impl Scorer {
    /// Combines `scores` with the variant of `stride_queries` that writes its strides.
    #[must_use]
    pub fn of(scores: Variant, shape: &KvShape, stride: u32) -> Self {
        let by_matrices = scores.kernel.name == strided_qk_coop::KERNEL.name;
        let strides = if by_matrices { StrideType::F16 } else { StrideType::F32 };
        let queries = stride_queries::variant(shape.head_dim, stride, strides);
        Self { scores, queries, row_words: strides.row_words(shape.head_dim, stride) }
    }

    /// Returns the fastest kernels for the device that serve the shape.
    #[must_use]
    pub fn best(profile: &DeviceProfile, shape: &KvShape, stride: u32, block: u32) -> Self {
        Self::of(best(profile, shape, stride, block), shape, stride)
    }
}

fn best(profile: &DeviceProfile, shape: &KvShape, stride: u32, block: u32) -> Variant {
    let by_matrices = profile.runs_matrices() && strided_qk_coop::serves(shape, stride, block);
    let by_broadcasts = profile.software && strided_qk_broadcast::serves(shape, stride, block);
    let ways = [
        by_matrices.then(|| strided_qk_coop::variant(shape, stride, block)),
        by_broadcasts.then(|| strided_qk_broadcast::variant(shape, stride, block)),
    ];
    let way = ways.into_iter().flatten().find(|variant| profile.runs(variant));
    way.unwrap_or_else(|| variant(shape, stride, block))
}
