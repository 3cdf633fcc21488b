//! Partitions of the keys of decode rows, and parts of those of tiles.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::mla_decode;
use attn_kernels::kernel::paged_decode::{self, Lanes, PARTITION, partition_of, partitions};
use attn_kernels::rows::DecodeRow;

use super::batch::{Batch, Dense, Rows};
use super::keys::Beyond;
use super::options::DecoderOptions;
use super::views::View;
use crate::cast::u32_of;
use crate::{DecoderConfig, KvPool, Reach};

const _: () = assert!(PARTITION == mla_decode::PARTITION, "latents are cut alike");

/// Partitions in which rows are attended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cut {
    /// Division of keys among the lanes of a workgroup.
    pub(super) lanes: Lanes,
    /// Keys of a partition.
    pub(super) partition_size: u32,
    /// The most partitions of a row.
    pub(super) max_partitions: u32,
}

impl Cut {
    /// The cut of decode rows that attend all that they see.
    fn of(lanes: Lanes, partition_size: u32, rows: &[DecodeRow]) -> Self {
        let of = |row: &DecodeRow| partitions(partition_size, row.first_key, row.len);
        Self { lanes, partition_size, max_partitions: rows.iter().map(of).max().unwrap_or(0) }
    }
}

/// Parts of the keys of tiles, which different workgroups attend: few tiles are too few workgroups for a GPU, and go through
/// a long context one key after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parts {
    /// Parts, at least 1.
    pub(super) count: u32,
    /// Keys of each, from position 0 on; `u32::MAX` where there is one.
    pub(super) keys: u32,
}

impl Default for Parts {
    /// All keys in one.
    fn default() -> Self {
        Self { count: 1, keys: u32::MAX }
    }
}

/// Workgroups of tiles that fill a large GPU: two for each of the 132 multiprocessors of an H200. Twice as many are faster for
/// sixteen rows behind 100,000 tokens of Llama 3 8B, 56 in place of 62 ms a step, and slower for 256 rows behind 20,000.
const FULL: u32 = 264;

/// Minimum number of keys of a part, to be worth an output of its own.
const MIN_PART_KEYS: u32 = 1024;

impl Parts {
    /// Parts for `workgroups` workgroups without any, whose rows see `keys` keys.
    fn of(workgroups: u32, keys: u32) -> Self {
        let count = (FULL / workgroups.max(1)).min(keys / MIN_PART_KEYS);
        if count <= 1 {
            return Self::default();
        }
        // Kernels go through sixteen keys at once.
        let keys_of_each = keys.div_ceil(count).next_multiple_of(16);
        Self { count: keys.div_ceil(keys_of_each), keys: keys_of_each }
    }
}

/// Division of the rows of a view that attend all that they see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Division {
    /// Partitions of the rows that are attended one by one.
    pub(super) cut: Cut,
    /// Parts of the keys of tiles.
    pub(super) parts: Parts,
}

/// Partitions and parts of a step, and the rules that they follow.
#[derive(Debug)]
pub(super) struct Partitions {
    gpu: Arc<Gpu>,
    shape: KvShape,
    num_heads: u32,
    coop: bool,
    /// Whether partitions of rows that attend all that they see have one size: those of latents do, and reproducible rows must
    /// not hang on the others' lengths.
    fixed: bool,
    /// Whether partitions of rows that attend lists have one size, since slots for pages hold whole partitions.
    lists_fixed: bool,
    /// Divisions of the step, by view.
    views: Vec<[Division; 2]>,
}

impl Partitions {
    pub(super) fn new(gpu: &Arc<Gpu>, config: &DecoderConfig, options: &DecoderOptions, kv: &KvPool) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            shape: *kv.shape(),
            num_heads: config.num_heads,
            coop: options.uses_coop(gpu),
            fixed: options.reproducible || config.latent.is_some(),
            lists_fixed: options.reproducible || kv.page_slots() > 0,
            views: Vec::new(),
        }
    }

    /// Returns the division of `keys` keys of all rows among the lanes of a workgroup.
    fn lanes(&self, keys: u64) -> Lanes {
        self.gpu.decode_lanes(&self.shape, self.num_heads, keys, self.coop)
    }

    /// Decides on the partitions of rows that attend all that they see, and on the parts of tiles. Chunks of the ring are whole
    /// partitions.
    pub(super) fn plan(&mut self, views: &[View], batch: &Batch, beyond: &Beyond) {
        let of_view = |(index, view): (usize, &View)| {
            Dense::BOTH.map(|which| {
                let streams = beyond.stream(index, which).is_some();
                self.divide(view.reach, batch.views[index].dense(which), streams)
            })
        };
        self.views = views.iter().enumerate().map(of_view).collect();
    }

    fn divide(&self, reach: Reach, rows: &Rows, streams: bool) -> Division {
        let cut = Cut::of(self.lanes(0), PARTITION, &rows.decode);
        if self.fixed || streams {
            return Division { cut, parts: Parts::default() };
        }
        let keys = || rows.decode.iter().map(DecodeRow::keys);
        let (sum, longest) = (keys().map(u64::from).sum(), keys().max().unwrap_or(0));
        let lanes = self.lanes(sum);
        let size = self.partition_of(lanes, sum, longest, cut.max_partitions);
        let mut parts = Parts::default();
        if reach == Reach::Full && !self.gpu.is_cpu() {
            let end = rows.tiles.iter().map(|tile| tile.position + tile.rows).max().unwrap_or(0);
            parts = Parts::of(self.num_heads * u32_of(rows.tiles.len()), end);
        }
        Division { cut: Cut::of(lanes, size, &rows.decode), parts }
    }

    /// Returns the division of rows of a view.
    pub(super) fn of(&self, view: usize, which: Dense) -> Division {
        self.views[view][which as usize]
    }

    /// Returns the cuts of all rows that attend all that they see.
    pub(super) fn cuts(&self) -> impl Iterator<Item = Cut> {
        self.views.iter().flatten().map(|division| division.cut)
    }

    /// Returns the most parts of tiles; 1 if no tile's keys are cut.
    pub(super) fn max_parts(&self) -> u32 {
        self.views.iter().flatten().map(|division| division.parts.count).max().unwrap_or(1)
    }

    /// Partitions of rows that attend lists of at most `tokens` tokens.
    pub(super) fn cut_lists(&self, rows: &Rows, tokens: u32) -> Cut {
        let keys = rows.decode.iter().map(|row| u64::from(row.len.min(tokens))).sum();
        let longest = rows.longest.min(tokens);
        let (lanes, partition_size) = if self.lists_fixed {
            (self.lanes(0), PARTITION)
        } else {
            let lanes = self.lanes(keys);
            (lanes, self.partition_of(lanes, keys, longest, longest.div_ceil(PARTITION)))
        };
        Cut { lanes, partition_size, max_partitions: partitions(partition_size, 0, longest).max(1) }
    }

    /// The most partitions of one of `rows`, whatever lists they attend.
    pub(super) fn max_listed(&self, rows: &Rows) -> u32 {
        let keys = rows.decode.iter().map(|row| u64::from(row.len)).sum();
        let of =
            |keys| paged_decode::max_partitions(&self.shape, self.num_heads, self.lanes(keys), rows.longest);
        partitions(PARTITION, 0, rows.longest).max(of(0)).max(of(keys))
    }

    /// Size of the partitions of rows of `longest` keys at most that have at most `most` partitions of [`PARTITION`] keys.
    fn partition_of(&self, lanes: Lanes, keys: u64, longest: u32, most: u32) -> u32 {
        let size = partition_of(&self.shape, self.num_heads, lanes, keys, longest);
        // One partition needs no reduction, and a processor in place of a device is full with any size.
        if most <= 1 || self.gpu.is_cpu() { size.max(PARTITION) } else { size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_a_gpu_and_cover_all_keys() {
        let parts = |workgroups, keys| {
            let Parts { count, keys: each } = Parts::of(workgroups, keys);
            assert!(
                count == 1 || ((count - 1) * each < keys && keys <= count * each),
                "{keys}: {count} of {each}"
            );
            count
        };
        // A tile of 32 heads; sixteen of them.
        assert_eq!([500, 2_048, 8_000, 32_000, 120_001].map(|keys| parts(32, keys)), [1, 2, 7, 8, 8]);
        assert_eq!([500, 2_048, 120_000].map(|keys| parts(5 * 32, keys)), [1, 1, 1]);
        // Without tiles there is nothing to cut.
        assert_eq!(parts(0, 0), 1);
    }

    #[test]
    fn rows_count_the_partitions_that_their_keys_lie_in() {
        let row = |(len, first_key)| DecodeRow { len, first_key, ..DecodeRow::default() };
        let rows = [(300, 0), (1025, 255), (0, 0)].map(row);
        assert_eq!(Cut::of(Lanes::Workgroup, 256, &rows).max_partitions, 5);
        assert_eq!(Cut::of(Lanes::Workgroup, 2048, &rows).max_partitions, 1);
    }
}
