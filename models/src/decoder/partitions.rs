//! Into what partitions the keys of decode rows are cut.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::mla_decode;
use attn_kernels::kernel::paged_decode::{self, Lanes, PARTITION, partition_of, partitions};
use attn_kernels::rows::DecodeRow;

use super::inputs::{Plan, Rows};
use super::options::DecoderOptions;
use crate::{DecoderConfig, KvPool};

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

/// Decides on partitions.
#[derive(Debug)]
pub(super) struct Cutter {
    gpu: Arc<Gpu>,
    shape: KvShape,
    num_heads: u32,
    coop: bool,
    /// Whether partitions of rows that attend all that they see have one size: those of latents do, and reproducible rows must
    /// not hang on the others' lengths.
    fixed: bool,
    /// Whether partitions of rows that attend lists have one size, since slots for pages hold whole partitions.
    lists_fixed: bool,
}

impl Cutter {
    pub(super) fn new(gpu: &Arc<Gpu>, config: &DecoderConfig, options: &DecoderOptions, kv: &KvPool) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            shape: *kv.shape(),
            num_heads: config.num_heads,
            coop: options.uses_coop(gpu),
            fixed: options.reproducible || config.latent.is_some(),
            lists_fixed: options.reproducible || kv.page_slots() > 0,
        }
    }

    /// Returns the division of `keys` keys of all rows among the lanes of a workgroup.
    fn lanes(&self, keys: u64) -> Lanes {
        self.gpu.decode_lanes(&self.shape, self.num_heads, keys, self.coop)
    }

    /// Decides on the partitions of rows that attend all that they see. Chunks of the ring are whole partitions.
    pub(super) fn cut(&self, plan: &mut Plan) {
        for view in &mut plan.views {
            for rows in [&mut view.all, &mut view.whole] {
                rows.cut = Cut::of(self.lanes(0), PARTITION, &rows.decode);
                if !self.fixed && rows.stream.is_none() {
                    let keys = || rows.decode.iter().map(DecodeRow::keys);
                    let (sum, longest) = (keys().map(u64::from).sum(), keys().max().unwrap_or(0));
                    let lanes = self.lanes(sum);
                    let size = self.partition_of(lanes, sum, longest, rows.cut.max_partitions);
                    rows.cut = Cut::of(lanes, size, &rows.decode);
                }
            }
        }
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
    fn rows_count_the_partitions_that_their_keys_lie_in() {
        let row = |(len, first_key)| DecodeRow { len, first_key, ..DecodeRow::default() };
        let rows = [(300, 0), (1025, 255), (0, 0)].map(row);
        assert_eq!(Cut::of(Lanes::Workgroup, 256, &rows).max_partitions, 5);
        assert_eq!(Cut::of(Lanes::Workgroup, 2048, &rows).max_partitions, 1);
    }
}
