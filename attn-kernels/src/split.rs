//! Splits of the keys of rows among workgroups (split-KV, as in FlashDecoding), and of rows among dispatches.
//!
//! Few rows are too few workgroups for a GPU, and would go through a long context one key after the other. So the keys of a row
//! are cut into partitions, whose outputs lie in a buffer until `paged_reduce` merges them. Partitions are large enough that
//! their outputs stay within a budget, and as large as still fills the device.

#[cfg(test)]
mod tests;

use crate::kernel::paged_decode::{self, Lanes, PARTITION, SHORT, partitions};
use crate::kernel::{KvShape, mla_decode};
use crate::profile::{DeviceProfile, Tuning};
use crate::rows::DecodeRow;

const _: () = assert!(PARTITION == mla_decode::PARTITION, "latents are split alike");

/// Minimum number of rows of a dispatch, unless the step has fewer rows or their partitions exceed the budget of
/// bytes.
const FEW_ROWS: u64 = 16;

/// Number of bytes that the partitions of [`FEW_ROWS`] rows may take. If they would take more, partitions of long
/// rows grow, up to [`LONG_PARTITION`]. Partitions of fixed size, which short rows use too, take up to half a
/// binding.
const BUDGET: u64 = 256 << 20;

/// Maximum number of keys of a partition that grows so that more rows fit into a dispatch. Longer partitions would
/// save little merging, and keys on the host come to the device in whole partitions.
const LONG_PARTITION: u64 = 4096;

/// Number of bytes of the partitions of a dispatch of many rows.
const DISPATCH_BYTES: u64 = 64 << 20;

/// Number of bytes of the partitions of a dispatch of many rows on a processor; they should fit into its caches.
const SOFTWARE_DISPATCH_BYTES: u64 = 4 << 20;

/// Split of the keys of rows into partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SplitPlan {
    /// Division of a partition's keys among the lanes of a workgroup.
    pub lanes: Lanes,
    /// Number of keys of a partition.
    pub partition_size: u32,
    /// Maximum number of partitions of a row.
    pub max_partitions: u32,
}

impl SplitPlan {
    fn of(lanes: Lanes, partition_size: u32, rows: &[DecodeRow]) -> Self {
        let of = |row: &DecodeRow| partitions(partition_size, row.first_key, row.len);
        Self { lanes, partition_size, max_partitions: rows.iter().map(of).max().unwrap_or(0) }
    }
}

/// A cache whose keys are split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitCache {
    /// Cache with keys and values of each head.
    Heads(KvShape),
    /// Cache of latents with this many elements. Its kernel, `mla_decode`, has only one division of keys among lanes.
    Latents(u32),
}

impl SplitCache {
    /// Number of f32 of a partition's output for one head.
    fn width(self) -> u32 {
        match self {
            Self::Heads(shape) => shape.head_dim,
            Self::Latents(latent) => latent,
        }
    }
}

/// Plans the splits of the rows of one attention on one device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SplitPlanner {
    profile: DeviceProfile,
    cache: SplitCache,
    num_heads: u32,
    /// Number of keys of a partition in plans in which this number must not depend on the step.
    fixed: u32,
}

impl SplitPlanner {
    /// Creates a planner for `num_heads` query heads over `cache`, for rows of at most `longest` keys. `profile`
    /// describes the device; its level is [`Level::Coop`](crate::Level::Coop) only if results may be rounded to f16.
    #[must_use]
    pub fn new(profile: &DeviceProfile, cache: SplitCache, num_heads: u32, longest: u32) -> Self {
        let planner = Self { profile: *profile, cache, num_heads, fixed: PARTITION };
        Self { fixed: planner.least(longest, profile.binding_bytes / 2), ..planner }
    }

    /// Returns the smallest partition, in keys, with which [`FEW_ROWS`] rows of `longest` keys take at most `budget`
    /// bytes: [`PARTITION`], or a power of two above it. Beyond [`LONG_PARTITION`], only one row has to fit.
    fn least(&self, longest: u32, budget: u64) -> u32 {
        let of = |rows: u64| {
            let most = self.partitions_within(rows, budget);
            u64::from(longest).div_ceil(most).max(PARTITION.into()).next_power_of_two()
        };
        u32::try_from(of(FEW_ROWS).min(LONG_PARTITION.max(of(1)))).unwrap_or(1 << 31)
    }

    /// Number of partitions per row with which the results of `rows` rows take at most `budget` bytes, at least 1.
    fn partitions_within(&self, rows: u64, budget: u64) -> u64 {
        // A row that is not cut at its begin has one more.
        (budget / (rows * self.bytes_of_row(1)).max(1)).saturating_sub(1).max(1)
    }

    /// Number of bytes that the partitions of [`FEW_ROWS`] rows may take on this device.
    fn budget(&self) -> u64 {
        BUDGET.min(self.profile.binding_bytes)
    }

    /// Returns the number of keys of a partition for plans that must not depend on the step: [`PARTITION`], or the
    /// power of two above it with which the longest rows fit the device.
    #[must_use]
    pub fn fixed(&self) -> u32 {
        self.fixed
    }

    /// Returns the division of a partition's keys among the lanes of a workgroup, in a step that attends `keys` keys in all.
    #[must_use]
    pub fn lanes(&self, keys: u64) -> Lanes {
        match &self.cache {
            SplitCache::Heads(shape) => Lanes::of(&self.profile, shape, self.num_heads, keys),
            SplitCache::Latents(_) => Lanes::Workgroup,
        }
    }

    /// Splits rows that attend to all keys they see. `fixed` is the number of keys of a partition, if this number
    /// must not depend on the step.
    #[must_use]
    pub fn all(&self, rows: &[DecodeRow], fixed: Option<u32>) -> SplitPlan {
        let keys = || rows.iter().map(DecodeRow::keys);
        let (lanes, size) = match fixed {
            Some(size) => (self.lanes(0), size),
            None => self.fastest(keys().map(u64::from).sum(), keys().max().unwrap_or(0), || {
                SplitPlan::of(Lanes::Workgroup, PARTITION, rows).max_partitions
            }),
        };
        SplitPlan::of(lanes, size, rows)
    }

    /// Splits `rows`, which attend to lists of at most `tokens` tokens each. `fixed` is the number of keys of a
    /// partition, if this number must not depend on the step.
    #[must_use]
    pub fn listed(&self, rows: &[DecodeRow], tokens: u32, fixed: Option<u32>) -> SplitPlan {
        let keys = || rows.iter().map(|row| row.len.min(tokens));
        let longest = keys().max().unwrap_or(0);
        let (lanes, partition_size) = match fixed {
            Some(size) => (self.lanes(0), size),
            None => self.fastest(keys().map(u64::from).sum(), longest, || longest.div_ceil(PARTITION)),
        };
        SplitPlan { lanes, partition_size, max_partitions: partitions(partition_size, 0, longest).max(1) }
    }

    /// Splits rows that attend to at most `longest` keys, in two caches together.
    #[must_use]
    pub fn latents(&self, longest: u32) -> SplitPlan {
        let partition_size = self.least(longest, self.budget());
        SplitPlan {
            max_partitions: partitions(partition_size, 0, longest),
            partition_size,
            ..SplitPlan::default()
        }
    }

    /// Returns the maximum number of partitions of any of `rows`, whatever lists the rows attend to.
    #[must_use]
    pub fn max_listed(&self, rows: &[DecodeRow], fixed: Option<u32>) -> u32 {
        let longest = rows.iter().map(|row| row.len).max().unwrap_or(0);
        if let Some(size) = fixed {
            return partitions(size, 0, longest).max(1);
        }
        let sum = rows.iter().map(|row| u64::from(row.len)).sum();
        let most = |longest| {
            let plain = partitions(PARTITION, 0, longest).max(1);
            let SplitCache::Heads(shape) = &self.cache else { return plain };
            let of =
                |keys| max_partitions(&self.profile.tuning, shape, self.num_heads, self.lanes(keys), longest);
            plain.max(of(0)).max(of(sum))
        };
        let least = self.least(longest, self.budget());
        if least <= PARTITION {
            return most(longest);
        }
        // Lists that are short enough to fit in any partitions may have more of them than longer ones.
        let fitting = self.partitions_within(FEW_ROWS, self.budget()) * u64::from(PARTITION);
        let fitting = u32::try_from(fitting).map_or(longest, |fitting| fitting.min(longest));
        most(longest).min((partitions(least, 0, longest) + 1).max(most(fitting)))
    }

    /// Returns the fastest division among lanes, and its partition size, for rows that attend to `sum` keys in all
    /// and to at most `longest` keys each. `most` returns the maximum number of partitions of [`PARTITION`] keys in a
    /// row.
    fn fastest(&self, sum: u64, longest: u32, most: impl Fn() -> u32) -> (Lanes, u32) {
        let (lanes, least) = (self.lanes(sum), self.least(longest, self.budget()));
        let SplitCache::Heads(shape) = &self.cache else { return (lanes, least) };
        let size = partition_of(&self.profile.tuning, shape, self.num_heads, lanes, sum, longest);
        // One partition needs no reduction, but by matrices its sixteen steps one after the other take longer than one.
        // A processor in place of a device is full with any size.
        let one = lanes != Lanes::Matrices && most() <= 1;
        let large = self.profile.software || least > PARTITION || one;
        (lanes, if large { size.max(least) } else { size })
    }

    /// Returns the maximum number of rows of one dispatch, of at most `max_partitions` partitions each; at least 1.
    #[must_use]
    pub fn rows_together(&self, max_partitions: u32) -> usize {
        let rows = self.dispatch_bytes(max_partitions) / self.bytes_of_row(max_partitions).max(1);
        usize::try_from(rows).unwrap_or(usize::MAX).max(1)
    }

    /// Returns the maximum number of partial outputs, each of one head, that exist at a time while `rows` rows of at
    /// most `max_partitions` partitions go through their [dispatches](Self::rows_together).
    #[must_use]
    pub fn outputs(&self, rows: usize, max_partitions: u32) -> usize {
        let bytes = self.dispatch_bytes(max_partitions).min(rows as u64 * self.bytes_of_row(max_partitions));
        usize::try_from(bytes / 4 / u64::from(self.cache.width()).max(1)).unwrap_or(usize::MAX)
    }

    /// Number of bytes that the partitions of one dispatch may take, if its rows have at most `max_partitions`
    /// partitions. The number never falls as `max_partitions` grows.
    fn dispatch_bytes(&self, max_partitions: u32) -> u64 {
        let row = self.bytes_of_row(max_partitions);
        let many = if self.profile.software { SOFTWARE_DISPATCH_BYTES } else { DISPATCH_BYTES };
        (FEW_ROWS * row).min(self.budget()).max(row).max(many.min(self.profile.binding_bytes))
    }

    /// Bytes of the partial results of a row with `max_partitions` partitions.
    fn bytes_of_row(&self, max_partitions: u32) -> u64 {
        u64::from(self.num_heads) * u64::from(max_partitions) * u64::from(self.cache.width()) * 4
    }

    /// Returns the split, among workgroups, of the `keys` keys that `tiles` tiles of a prompt attend to.
    #[must_use]
    pub fn parts(&self, tiles: u32, keys: u32) -> KeySplit {
        if self.profile.software {
            return KeySplit::default();
        }
        KeySplit::of(&self.profile.tuning, self.num_heads * tiles, keys)
    }
}

/// Split of a prompt's keys into parts: for each tile of the prompt, different workgroups attend to different parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySplit {
    /// Number of parts, at least 1.
    pub count: u32,
    /// Number of keys of each part, from position 0 on; `u32::MAX` if there is one part.
    pub keys: u32,
}

impl Default for KeySplit {
    /// All keys in one part.
    fn default() -> Self {
        Self { count: 1, keys: u32::MAX }
    }
}

impl KeySplit {
    /// Returns the split of `keys` keys for a dispatch that has `workgroups` workgroups without a split.
    fn of(tuning: &Tuning, workgroups: u32, keys: u32) -> Self {
        let count = (tuning.tiles / workgroups.max(1)).min(keys / tuning.min_part_keys);
        if count <= 1 {
            return Self::default();
        }
        // Kernels go through sixteen keys at once.
        let keys_of_each = keys.div_ceil(count).next_multiple_of(16);
        Self { count: keys.div_ceil(keys_of_each), keys: keys_of_each }
    }
}

/// Returns the number of keys of a partition, for rows that attend to `keys` keys in all and to at most `longest`
/// keys each. It is the largest power of two with which the workgroups still fill the device, because long partitions
/// leave less to merge, but at least the minimum of a workgroup. Partitions are shorter if the longest row keeps the
/// same number of them, so that concurrent workgroups end together.
fn partition_of(
    tuning: &Tuning,
    shape: &KvShape,
    num_heads: u32,
    lanes: Lanes,
    keys: u64,
    longest: u32,
) -> u32 {
    // Matrices may take shorter partitions in short rows than in long ones.
    let [tile, long] = [longest, u32::MAX].map(|longest| paged_decode::tile(shape, lanes, longest));
    let of_a_partition = workgroups(shape, num_heads, lanes);
    let most = keys * of_a_partition / enough(tuning, shape, num_heads, lanes);
    let power = |most: u64| 1 << most.clamp(1, tuning.max_partition.into()).ilog2();
    // Half as many workgroups are enough for the shorter ones: on an H200 64 rows of 288 keys over two KV heads lose 4 % by
    // partitions of 32 in place of 64.
    let size = power(most).max(power(2 * most).min(long)).max(tile);
    let unit = size.min(long).max(tile);
    let even = longest.div_ceil(longest.div_ceil(size).max(1)).next_multiple_of(unit);
    even.clamp(tile, size)
}

/// The maximum number of partitions of a row of at most `keys` keys, whatever step it is in.
fn max_partitions(tuning: &Tuning, shape: &KvShape, num_heads: u32, lanes: Lanes, keys: u32) -> u32 {
    // Twice as many workgroups as are enough make two partitions of one of the next size; a row is cut at both ends, and
    // evened out for a longer one.
    let filling = 2 * enough(tuning, shape, num_heads, lanes) / workgroups(shape, num_heads, lanes);
    let filling = u32::try_from(filling).unwrap_or(u32::MAX - 3) + 1;
    // Short rows may have more partitions than long ones.
    let tiles = |keys: u32| keys.div_ceil(paged_decode::tile(shape, lanes, keys));
    let tiles = tiles(keys).max(tiles(keys.min(SHORT)));
    2 + filling.min(tiles).max(keys.div_ceil(tuning.max_partition))
}

/// Number of workgroups that fill the device.
fn enough(tuning: &Tuning, shape: &KvShape, num_heads: u32, lanes: Lanes) -> u64 {
    let workgroups = &tuning.decode;
    u64::from(match lanes {
        Lanes::Matrices => workgroups.matrices,
        _ if paged_decode::heads_per_group(shape, num_heads, lanes) > 2 => workgroups.many_heads,
        _ => workgroups.few_heads,
    })
}

/// Number of workgroups of a row and partition.
fn workgroups(shape: &KvShape, num_heads: u32, lanes: Lanes) -> u64 {
    u64::from(shape.num_kv_heads * paged_decode::groups(shape, num_heads, lanes))
}
