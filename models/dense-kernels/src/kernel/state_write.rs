//! Writes states of a compressor into their paged cache.

use attn_kernels::declare::one;
use attn_kernels::kernel::flat_grid;
use attn_kernels::rows::KvWord;
use attn_kernels::{Variant, bindings, kernel, params};

kernel! {
    /// The kernel; [`StateWriteBuffers`] lists its bindings.
    "state_write"(StateWriteParams, StateWriteBuffers): Cache,
    grid: |params, _| flat_grid((params.rows * params.quads).div_ceil(WG)),
    modules: [super::MODULES],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`8 * width` per row",
    cases: crate::self_test::rows::state_write,
}

params! {
    /// Uniform parameters.
    pub struct StateWriteParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of 16-byte units of a row.
        pub quads: u32,
        /// Number of tokens per block.
        pub block_size: u32,
        /// Number of 16-byte units from one block to the next.
        pub page: u32,
    }
}

bindings! {
    /// Buffers of `state_write`.
    pub struct StateWriteBuffers(StateWriteParams) {
        /// Rows, `[rows, width]`, of a width that is a multiple of 4.
        read x: f32,
        /// Slots of rows in the cache, `[rows]`; -1 skips a row.
        read slots: i32,
        /// Blocks of `block_size` tokens, `[width]` each; blocks are `page` times 16 bytes apart.
        write states: KvWord,
    }
}

const WG: u32 = 64;

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL).constant("WG", WG)
}
