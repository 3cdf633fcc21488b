//! Into what partitions the keys of decode rows are cut.

use attn_kernels::kernel::paged_decode::{self, PARTITION, partition_of, partitions};

use super::Decoder;
use super::inputs::{Plan, Rows};

impl Decoder {
    /// Decides on the partitions of rows that attend all that they see.
    pub(super) fn cut(&self, plan: &mut Plan) {
        // Chunks of the ring are whole partitions, and what a row makes of them must not hang on the others' lengths.
        let fixed = self.options.reproducible || self.latent.is_some() || plan.stream.is_some();
        for view in &mut plan.views {
            for rows in [&mut view.all, &mut view.whole] {
                let keys = rows.decode.iter().map(|row| u64::from(row[1] - row[3])).sum();
                rows.partition_size = if fixed { PARTITION } else { self.partition_of(keys) };
                let of = |row: &[u32; 4]| partitions(rows.partition_size, row[3], row[1]);
                rows.max_partitions = rows.decode.iter().map(of).max().unwrap_or(0);
            }
        }
    }

    /// Keys of a partition of rows that attend lists of at most `tokens` tokens, and the most partitions of one.
    pub(super) fn cut_lists(&self, rows: &Rows, tokens: u32) -> (u32, u32) {
        let keys = rows.decode.iter().map(|row| u64::from(row[1].min(tokens))).sum();
        // Slots for pages hold whole partitions.
        let fixed = self.options.reproducible || self.residency.is_some();
        let size = if fixed { PARTITION } else { self.partition_of(keys) };
        (size, partitions(size, 0, rows.longest.min(tokens)).max(1))
    }

    /// The most partitions of one of `rows`, whatever lists they attend.
    pub(super) fn most_listed(&self, rows: &Rows) -> u32 {
        let most = partitions(PARTITION, 0, rows.longest);
        let (shape, heads) = (self.kv.shape(), self.config.num_heads);
        most.max(paged_decode::most_partitions(shape, heads, self.gpu.decode_lanes(shape), rows.longest))
    }

    fn partition_of(&self, keys: u64) -> u32 {
        let shape = self.kv.shape();
        partition_of(shape, self.config.num_heads, self.gpu.decode_lanes(shape), keys)
    }
}
