//! Into what partitions the keys of decode rows are cut.

use attn_kernels::kernel::mla_decode;
use attn_kernels::kernel::paged_decode::{self, Lanes, PARTITION, partition_of, partitions};

use super::Decoder;
use super::inputs::{Plan, Rows};

const _: () = assert!(PARTITION == mla_decode::PARTITION, "latents are cut alike");

/// Partitions of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cut {
    /// Keys of one.
    pub(super) partition_size: u32,
    /// The most of a row.
    pub(super) max_partitions: u32,
}

impl Cut {
    /// Of decode rows that attend all that they see.
    fn of(partition_size: u32, rows: &[[u32; 4]]) -> Self {
        let of = |row: &[u32; 4]| partitions(partition_size, row[3], row[1]);
        Self { partition_size, max_partitions: rows.iter().map(of).max().unwrap_or(0) }
    }
}

impl Decoder {
    /// How lanes of a workgroup share keys.
    pub(super) fn decode_lanes(&self) -> Lanes {
        self.gpu.decode_lanes(self.kv.shape(), self.config.num_heads, self.options.coop(&self.gpu))
    }

    /// Decides on the partitions of rows that attend all that they see.
    pub(super) fn cut(&self, plan: &mut Plan) {
        // Those of latents have one size, chunks of the ring are whole partitions, and reproducible rows must not hang on the
        // others' lengths.
        let fixed = self.options.reproducible || self.latent.is_some() || plan.stream.is_some();
        for view in &mut plan.views {
            for rows in [&mut view.all, &mut view.whole] {
                rows.cut = Cut::of(PARTITION, &rows.decode);
                if !fixed {
                    let keys = || rows.decode.iter().map(|row| row[1] - row[3]);
                    let longest = keys().max().unwrap_or(0);
                    let size =
                        self.partition_of(keys().map(u64::from).sum(), longest, rows.cut.max_partitions);
                    rows.cut = Cut::of(size, &rows.decode);
                }
            }
        }
    }

    /// Partitions of rows that attend lists of at most `tokens` tokens.
    pub(super) fn cut_lists(&self, rows: &Rows, tokens: u32) -> Cut {
        let keys = rows.decode.iter().map(|row| u64::from(row[1].min(tokens))).sum();
        // Slots for pages hold whole partitions.
        let fixed = self.options.reproducible || self.residency.is_some();
        let longest = rows.longest.min(tokens);
        let partition_size =
            if fixed { PARTITION } else { self.partition_of(keys, longest, longest.div_ceil(PARTITION)) };
        Cut { partition_size, max_partitions: partitions(partition_size, 0, longest).max(1) }
    }

    /// The most partitions of one of `rows`, whatever lists they attend.
    pub(super) fn most_listed(&self, rows: &Rows) -> u32 {
        let most = partitions(PARTITION, 0, rows.longest);
        let (shape, heads) = (self.kv.shape(), self.config.num_heads);
        most.max(paged_decode::most_partitions(shape, heads, self.decode_lanes(), rows.longest))
    }

    /// Of rows of `longest` keys at most that have at most `most` partitions of [`PARTITION`] keys.
    fn partition_of(&self, keys: u64, longest: u32, most: u32) -> u32 {
        let (shape, heads) = (self.kv.shape(), self.config.num_heads);
        let size = partition_of(shape, heads, self.decode_lanes(), keys, longest);
        // One partition needs no reduction, and a processor in place of a device is full with any size.
        if most <= 1 || self.gpu.is_cpu() { size.max(PARTITION) } else { size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_count_the_partitions_that_their_keys_lie_in() {
        let rows = [[0, 300, 0, 0], [1, 1025, 0, 255], [2, 0, 0, 0]];
        assert_eq!(Cut::of(256, &rows), Cut { partition_size: 256, max_partitions: 5 });
        assert_eq!(Cut::of(2048, &rows).max_partitions, 1);
    }
}
