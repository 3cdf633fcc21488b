//! Into what partitions the keys of decode rows are cut.

use attn_kernels::kernel::mla_decode;
use attn_kernels::kernel::paged_decode::{self, Lanes, PARTITION, partition_of, partitions};

use super::Decoder;
use super::inputs::{Plan, Rows};

const _: () = assert!(PARTITION == mla_decode::PARTITION, "latents are cut alike");

/// How rows are attended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cut {
    /// How the lanes of a workgroup share keys.
    pub(super) lanes: Lanes,
    /// Keys of a partition.
    pub(super) partition_size: u32,
    /// The most partitions of a row.
    pub(super) max_partitions: u32,
}

impl Cut {
    /// Of decode rows that attend all that they see.
    fn of(lanes: Lanes, partition_size: u32, rows: &[[u32; 4]]) -> Self {
        let of = |row: &[u32; 4]| partitions(partition_size, row[3], row[1]);
        Self { lanes, partition_size, max_partitions: rows.iter().map(of).max().unwrap_or(0) }
    }
}

impl Decoder {
    /// How lanes of a workgroup share `keys` keys of all rows.
    fn decode_lanes(&self, keys: u64) -> Lanes {
        self.gpu.decode_lanes(self.kv.shape(), self.config.num_heads, keys, self.options.coop(&self.gpu))
    }

    /// Decides on the partitions of rows that attend all that they see.
    pub(super) fn cut(&self, plan: &mut Plan) {
        // Those of latents have one size, chunks of the ring are whole partitions, and reproducible rows must not hang on the
        // others' lengths.
        let fixed = self.options.reproducible || self.latent.is_some() || plan.stream.is_some();
        for view in &mut plan.views {
            for rows in [&mut view.all, &mut view.whole] {
                rows.cut = Cut::of(self.decode_lanes(0), PARTITION, &rows.decode);
                if !fixed {
                    let keys = || rows.decode.iter().map(|row| row[1] - row[3]);
                    let (sum, longest) = (keys().map(u64::from).sum(), keys().max().unwrap_or(0));
                    let lanes = self.decode_lanes(sum);
                    let size = self.partition_of(lanes, sum, longest, rows.cut.max_partitions);
                    rows.cut = Cut::of(lanes, size, &rows.decode);
                }
            }
        }
    }

    /// Partitions of rows that attend lists of at most `tokens` tokens.
    pub(super) fn cut_lists(&self, rows: &Rows, tokens: u32) -> Cut {
        let keys = rows.decode.iter().map(|row| u64::from(row[1].min(tokens))).sum();
        let longest = rows.longest.min(tokens);
        // Slots for pages hold whole partitions.
        let fixed = self.options.reproducible || self.residency.is_some();
        let (lanes, partition_size) = if fixed {
            (self.decode_lanes(0), PARTITION)
        } else {
            let lanes = self.decode_lanes(keys);
            (lanes, self.partition_of(lanes, keys, longest, longest.div_ceil(PARTITION)))
        };
        Cut { lanes, partition_size, max_partitions: partitions(partition_size, 0, longest).max(1) }
    }

    /// The most partitions of one of `rows`, whatever lists they attend.
    pub(super) fn most_listed(&self, rows: &Rows) -> u32 {
        let (shape, heads) = (self.kv.shape(), self.config.num_heads);
        let keys = rows.decode.iter().map(|row| u64::from(row[1])).sum();
        let of = |keys| paged_decode::most_partitions(shape, heads, self.decode_lanes(keys), rows.longest);
        partitions(PARTITION, 0, rows.longest).max(of(0)).max(of(keys))
    }

    /// Of rows of `longest` keys at most that have at most `most` partitions of [`PARTITION`] keys.
    fn partition_of(&self, lanes: Lanes, keys: u64, longest: u32, most: u32) -> u32 {
        let size = partition_of(self.kv.shape(), self.config.num_heads, lanes, keys, longest);
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
        assert_eq!(Cut::of(Lanes::Workgroup, 256, &rows).max_partitions, 5);
        assert_eq!(Cut::of(Lanes::Workgroup, 2048, &rows).max_partitions, 1);
    }
}
