//! Selects the fewest blocks that reach a share of each query block's attention mass, as lists: the last step of
//! XAttention.

use crate::profile::DeviceProfile;
use crate::{Level, Variant, slot};

kernel! {
    /// The kernel; [`FindBlocksBuffers`] lists its bindings.
    "find_blocks"(FindBlocksParams, FindBlocksBuffers): Selection,
    grid: |params, _| [params.query_blocks, params.num_kv_heads, 1],
    listed: |_| vec![(String::new(), variant(4)), ("software".into(), software(4))],
    variants: "one",
    bytes: "`16 * H` per query block and key block, of which caches serve most",
    cases: crate::self_test::xattn::find_blocks,
}

params! {
    /// Uniform parameters; [`Estimate`](super::xattn::Estimate) fills them in.
    #[derive(PartialEq)]
    pub struct FindBlocksParams {
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Number of query blocks of this dispatch.
        pub query_blocks: u32,
        /// Number of key blocks.
        pub key_blocks: u32,
        /// Number of f32 from one query block's sums to the next.
        pub sum_stride: u32,
        /// Index of the key block that contains the first query block.
        pub current: u32,
        /// Flag: 1 if a query block sees only the key blocks up to its own.
        pub causal: u32,
        /// Number of u32 from one list to the next.
        pub out_stride: u32,
        /// First list of this dispatch.
        pub first_list: u32,
        /// Number of query heads of a KV head that must keep a block: see [`Vote::votes`].
        pub votes: u32,
        /// Number of units for a mass of 1: a power of two that keeps the mass of a query block below 2^31 units.
        pub units: f32,
    }
}

bindings! {
    /// Buffers of `find_blocks`.
    pub struct FindBlocksBuffers(FindBlocksParams) {
        /// Sums, `[num_heads, query_blocks, sum_stride]` of `softmax_block_sum`.
        read sums: f32,
        /// Share of the mass that each head must reach, `[num_heads]`.
        read thresholds: f32,
        /// Lists `[query_blocks, num_kv_heads]` of out_stride u32 from list first_list on: count, ascending blocks.
        index out: u32,
    }
}

/// Number of lanes of a workgroup.
pub(super) const LANES: u32 = 256;

/// Number of lanes of a workgroup on a software driver, where barriers switch between subgroups. On lavapipe, lists
/// of 32 query heads take 6 ms in place of 20, and the sums before them 0.4 ms in place of 6. With fewer lanes, loops
/// over long contexts would exceed the 65,535 iterations after which such a driver ends a lane.
pub(super) const SOFTWARE_LANES: u32 = 32;

/// Rule by which the query heads of a KV head agree on blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Vote {
    /// Blocks that any of the query heads keeps.
    Any,
    /// Blocks that more than half of the query heads keep.
    Majority,
    /// Blocks that all query heads keep.
    All,
}

impl Vote {
    /// Number of heads of a group of `group` heads that must keep a block.
    #[must_use]
    pub fn votes(self, group: u32) -> u32 {
        match self {
            Self::Any => 1,
            Self::Majority => group / 2 + 1,
            Self::All => group,
        }
    }
}

/// Number of units for a mass of 1, if a query block's mass is at most `rows`.
#[must_use]
pub fn units(rows: u32) -> f32 {
    (1_u32 << 30) as f32 / rows.next_power_of_two() as f32
}

/// Returns the variant for `group` query heads per KV head. Its prefix sums stay in workgroup memory, because an
/// NVIDIA driver (580.159.04) computed wrong positions with prefix sums of subgroups.
#[must_use]
pub fn variant(group: u32) -> Variant {
    with_lanes(group, LANES)
}

/// Returns the variant in small workgroups, for software drivers.
#[must_use]
pub fn software(group: u32) -> Variant {
    with_lanes(group, SOFTWARE_LANES).for_software()
}

/// Returns the variant that suits a device.
#[must_use]
pub fn best(profile: &DeviceProfile, group: u32) -> Variant {
    let software = software(group);
    if profile.suits(&software) { software } else { variant(group) }
}

fn with_lanes(group: u32, lanes: u32) -> Variant {
    Variant::new(&KERNEL).set(slot::GROUP, group).set(slot::WG, lanes).set(slot::SCAN, Level::Baseline)
}
