//! Copies pages from host memory into slots of the device.

use super::KvShape;
use crate::Variant;
use crate::declare::one;
use crate::profile::DeviceProfile;
use crate::rows::{KvWord, WrittenBlock};

kernel! {
    /// The kernel; [`FetchPagesBuffers`] lists its bindings.
    "fetch_pages"(FetchPagesParams, FetchPagesBuffers): Cache,
    grid: |params, _| [params.workgroups, params.num_kv_heads, 1],
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`8 * tokens * D` per page of a KV head, half of it from the host",
    cases: crate::self_test::residency::fetch_cases,
}

params! {
    /// Uniform parameters.
    pub struct FetchPagesParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of slots of each KV head.
        pub num_slots: u32,
        /// Number of 16-byte units of a page.
        pub page_quads: u32,
        /// Number of workgroups of each KV head.
        pub workgroups: u32,
        /// Flag: 1 to copy the fetched pages, 0 to copy only the touched ones.
        pub fetch: u32,
        /// Number of blocks that the step wrote. Their pages on the device are copied again.
        pub touched: u32,
        /// First block that the buffers on the host hold.
        pub first_block: u32,
        /// Number of blocks of the buffers; pages of further blocks are skipped.
        pub num_blocks: u32,
    }
}

bindings! {
    /// Buffers of `fetch_pages`.
    pub struct FetchPagesBuffers(FetchPagesParams) {
        /// Pages to fetch, as `residency` wrote them.
        read fetches: u32,
        /// Keys on the host, `[num_blocks, num_kv_heads]` pages.
        read host_k: KvWord,
        /// Values on the host, `[num_blocks, num_kv_heads]` pages.
        read host_v: KvWord,
        /// Places of pages, as in `residency`.
        read places: u32,
        /// Blocks that the step wrote, `[n]`, and their places in the buffers on the host.
        read touched: WrittenBlock,
        /// Keys in slots of the device, `[num_slots, num_kv_heads]` pages.
        write k: KvWord,
        /// Values in slots of the device, `[num_slots, num_kv_heads]` pages.
        write v: KvWord,
    }
}

/// Number of workgroups of all heads together: with 256 lanes of 32 bytes each, 2 MiB are in transfer over the bus.
const WORKGROUPS: u32 = 256;

impl FetchPagesParams {
    /// Creates the parameters that every fetch into `num_slots` slots shares; nothing is touched, and the host holds
    /// all blocks.
    #[must_use]
    pub fn new(shape: &KvShape, num_slots: u32) -> Self {
        Self {
            num_kv_heads: shape.num_kv_heads,
            num_slots,
            page_quads: u32::try_from(shape.block_bytes() / 16).expect("a block is far smaller than 64 GiB")
                / shape.num_kv_heads,
            workgroups: WORKGROUPS.div_ceil(shape.num_kv_heads).min(num_slots).max(1),
            fetch: 1,
            touched: 0,
            first_block: 0,
            num_blocks: u32::MAX,
        }
    }

    /// Limits the number of workgroups to what helps on the device: a software driver has no bus to keep busy, and
    /// starting each workgroup costs, 0.5 ms for 256 of them.
    #[must_use]
    pub fn for_device(self, profile: &DeviceProfile) -> Self {
        Self { workgroups: if profile.software { 1 } else { self.workgroups }, ..self }
    }
}

/// Whether the part of a block that belongs to a head, with the scales after its codes, is a whole number of 16-byte units.
#[must_use]
pub fn serves(shape: &KvShape) -> bool {
    shape.block_bytes().is_multiple_of(16 * shape.num_kv_heads as usize)
}

/// Returns the variant.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}
