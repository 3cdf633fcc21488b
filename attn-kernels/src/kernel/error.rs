//! Errors of launches that are refused before anything is dispatched, because a kernel would follow indices out of
//! its buffers.

/// Reason why a launch does not fit its buffers or its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A size is not a multiple of the required divisor.
    #[error("{kernel}: {what} is {value}, not a multiple of {of}")]
    NotMultiple {
        /// The kernel.
        kernel: &'static str,
        /// Name of the size.
        what: &'static str,
        /// Value of the size.
        value: u64,
        /// Divisor that the size must have.
        of: u64,
    },
    /// A size is not a power of two.
    #[error("{kernel}: {what} is {value}, not a power of two")]
    NotPowerOfTwo {
        /// The kernel.
        kernel: &'static str,
        /// Name of the size.
        what: &'static str,
        /// Value of the size.
        value: u64,
    },
    /// A number is over its limit.
    #[error("{kernel}: {what} is {value}, the limit is {limit}")]
    OverLimit {
        /// The kernel.
        kernel: &'static str,
        /// Name of the number.
        what: &'static str,
        /// Value of the size.
        value: u64,
        /// Maximum that is allowed.
        limit: u64,
    },
    /// An entry of a list is over its limit.
    #[error("{kernel}: {what} of entry {entry} is {value}, the limit is {limit}")]
    EntryOverLimit {
        /// The kernel.
        kernel: &'static str,
        /// Name of the value in the entry.
        what: &'static str,
        /// Index of the entry.
        entry: usize,
        /// Value of the entry.
        value: u64,
        /// Maximum that is allowed.
        limit: u64,
    },
    /// A value that must not be zero is zero.
    #[error("{kernel}: {what} is 0")]
    Zero {
        /// The kernel.
        kernel: &'static str,
        /// Name of the value.
        what: &'static str,
    },
}

/// Checks of one kernel's launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch(pub(crate) &'static str);

impl Launch {
    /// Checks that `value` is a multiple of `of`, which is not 0.
    pub(crate) fn multiple(self, what: &'static str, value: u32, of: u32) -> Result<(), LaunchError> {
        let (value, of, kernel) = (u64::from(value), u64::from(of), self.0);
        if of != 0 && value.is_multiple_of(of) {
            return Ok(());
        }
        Err(LaunchError::NotMultiple { kernel, what, value, of })
    }

    /// Checks that blocks of `select_block` tokens consist of whole pages of `page` tokens.
    pub(crate) fn whole_pages(self, select_block: u32, page: u32) -> Result<(), LaunchError> {
        self.not_zero("selection block", select_block)?;
        self.multiple("selection block", select_block, page)
    }

    pub(crate) fn power_of_two(self, what: &'static str, value: u32) -> Result<(), LaunchError> {
        if value.is_power_of_two() {
            return Ok(());
        }
        Err(LaunchError::NotPowerOfTwo { kernel: self.0, what, value: value.into() })
    }

    pub(crate) fn at_most(self, what: &'static str, value: u64, limit: u64) -> Result<(), LaunchError> {
        if value <= limit {
            return Ok(());
        }
        Err(LaunchError::OverLimit { kernel: self.0, what, value, limit })
    }

    pub(crate) fn entry(
        self,
        what: &'static str,
        entry: usize,
        value: u64,
        limit: u64,
    ) -> Result<(), LaunchError> {
        if value <= limit {
            return Ok(());
        }
        Err(LaunchError::EntryOverLimit { kernel: self.0, what, entry, value, limit })
    }

    /// Checks that a block table covers the tokens from `first` until before `end`. The table begins at entry `table`
    /// of `tables`, and its blocks have `block_size` tokens. `entry` names the row, tile or span in the error.
    pub(crate) fn tokens(
        self,
        entry: usize,
        (tables, num_blocks): (&[u32], u32),
        table: u32,
        [first, end]: [u32; 2],
        block_size: u32,
    ) -> Result<(), LaunchError> {
        let at = |block: u32| u64::from(table) + u64::from(block);
        let blocks = (at(first / block_size), at(end.div_ceil(block_size)));
        self.table(entry, tables, blocks, num_blocks)
    }

    /// Checks that `tables` has the entries from `first` until before `end`, and that their blocks exist. `entry`
    /// names the row, tile or span in the error.
    pub(crate) fn table(
        self,
        entry: usize,
        tables: &[u32],
        (first, end): (u64, u64),
        num_blocks: u32,
    ) -> Result<(), LaunchError> {
        self.entry("end in the tables", entry, end, tables.len() as u64)?;
        let blocks = usize::try_from(first).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(usize::MAX);
        let largest = tables.get(blocks).and_then(|blocks| blocks.iter().max());
        let beyond = largest.map_or(0, |block| u64::from(*block) + 1);
        self.entry("block of the table + 1", entry, beyond, num_blocks.into())
    }

    pub(crate) fn not_zero(self, what: &'static str, value: u32) -> Result<(), LaunchError> {
        if value != 0 { Ok(()) } else { Err(LaunchError::Zero { kernel: self.0, what }) }
    }
}
