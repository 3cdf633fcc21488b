//! Capacity of a memory budget in blocks, tokens and sequences.

use crate::error::CapacityError;
use crate::layout::CacheLayout;
use crate::spec::LengthLimits;

impl CacheLayout {
    /// Number of blocks that fit in `available_bytes`, the null block included. The number is limited so that slot
    /// indices fit in 32 bits.
    #[must_use]
    pub fn num_blocks(&self, available_bytes: u64) -> u32 {
        let blocks = available_bytes.checked_div(self.bytes_per_block()).unwrap_or(0);
        let largest = self.groups.iter().map(|group| group.spec.block_size.get()).max().unwrap_or(1);
        // The free queue keeps a few ids for itself.
        u32::try_from(blocks).unwrap_or(u32::MAX).min(u32::MAX / largest).min(u32::MAX - 4)
    }

    /// Maximum number of blocks that one sequence holds at a time, over all groups.
    #[must_use]
    pub fn blocks_per_seq(&self, limits: LengthLimits) -> u64 {
        self.groups.iter().map(|group| u64::from(group.spec.max_blocks_per_seq(limits))).sum()
    }

    /// Bytes that one sequence of the maximum length takes, the null block included.
    #[must_use]
    pub fn bytes_per_seq(&self, limits: LengthLimits) -> u64 {
        (self.blocks_per_seq(limits) + 1).saturating_mul(self.bytes_per_block())
    }

    /// Number of sequences of the maximum length that `num_blocks` blocks hold at once; 0 without layers.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an estimate for people to read")]
    pub fn max_concurrency(&self, num_blocks: u32, limits: LengthLimits) -> f64 {
        let needed = self.blocks_per_seq(limits);
        if needed == 0 { 0.0 } else { f64::from(num_blocks) / needed as f64 }
    }

    /// Length of the longest sequence, up to `limits.max_model_len` tokens, that fits in `available_bytes`. O(groups
    /// · log length).
    ///
    /// # Errors
    /// [`CapacityError::NothingFits`] when not even one token does.
    pub fn fit_max_model_len(
        &self,
        available_bytes: u64,
        limits: LengthLimits,
    ) -> Result<u32, CapacityError> {
        let needed = |max_model_len| self.bytes_per_seq(LengthLimits { max_model_len, ..limits });
        if needed(1) > available_bytes {
            return Err(CapacityError::NothingFits { needed_bytes: needed(1), available_bytes });
        }
        // Invariant: `fits` tokens fit, `too_long` tokens do not, or are above the limit.
        let (mut fits, mut too_long) = (1, limits.max_model_len.saturating_add(1));
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            if needed(middle) <= available_bytes {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        Ok(fits)
    }

    /// Checks that one sequence of the longest length fits. Returns the number of blocks.
    ///
    /// # Errors
    /// [`CapacityError`] with the largest length that would fit.
    pub fn check_memory(&self, available_bytes: u64, limits: LengthLimits) -> Result<u32, CapacityError> {
        let fitting_len = self.fit_max_model_len(available_bytes, limits)?;
        if fitting_len < limits.max_model_len {
            return Err(CapacityError::TooLong {
                max_model_len: limits.max_model_len,
                needed_bytes: self.bytes_per_seq(limits),
                available_bytes,
                fitting_len,
            });
        }
        Ok(self.num_blocks(available_bytes))
    }
}
