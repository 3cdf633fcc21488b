//! Capacity for pages of lists on the device: how much can be attended at one time.

use crate::cast::u32_of;

/// Number of keys that a prefill tile with cooperative matrices loads at a time.
pub(in crate::decoder) const TILE_KEYS: u32 = 16;

/// Capacity for pages of lists on the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::decoder) struct SlotCapacity {
    pub(super) num_slots: u32,
    pub(super) block_size: u32,
    /// Number of pages per partition.
    pub(super) partition_pages: u32,
    /// Number of lists of tiles.
    pub(super) tile_requests: u32,
}

impl SlotCapacity {
    /// Returns the number of decode rows that are attended together: one partition of each has to fit.
    pub(in crate::decoder) fn rows_together(&self) -> usize {
        (self.num_slots / self.partition_pages) as usize
    }

    /// Returns the number of keys of each of `rows` lists of at most `keys` keys that fit together: all of them, or
    /// whole partitions.
    pub(in crate::decoder) fn keys_together(&self, rows: usize, keys: u32) -> u32 {
        let rows = u32_of(rows);
        if rows * keys.div_ceil(self.block_size) <= self.num_slots {
            return u32::MAX;
        }
        self.num_slots / (rows * self.partition_pages) * self.partition_pages * self.block_size
    }

    /// Returns the number of pages of each list of tiles that fit together.
    pub(in crate::decoder) fn tile_pages(&self) -> u32 {
        self.num_slots / self.tile_requests.max(1)
    }
}
