//! Names of tiers.

use std::fmt;

/// Name of a tier in counters and errors. The tiers of a stack have different names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierName(&'static str);

impl TierName {
    /// Name of a tier in the memory of this process.
    pub const HOST: Self = Self("host");
    /// Name of a tier in files of this machine, which one engine uses at a time.
    pub const DISK: Self = Self("disk");
    /// Name of a tier on a service or in a directory that several engines share.
    pub const REMOTE: Self = Self("remote");

    /// A custom name, for a second tier of one kind or for a tier of another kind.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
