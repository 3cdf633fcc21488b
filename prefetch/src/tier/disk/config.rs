//! Options of the disk tier.

use derive_setters::Setters;

use std::path::PathBuf;

use crate::changes::Changes;
use crate::policy::{PolicyKind, ReuseFilter};
use crate::tier::{BlockLayout, TierName};

/// Options of a disk tier.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct DiskConfig {
    /// Name in counters and errors.
    pub name: TierName,
    /// The directory; created when missing, and locked while open. One that cannot be written is served for reading.
    #[setters(skip)]
    pub directory: PathBuf,
    /// Size and division of every block.
    #[setters(skip)]
    pub layout: BlockLayout,
    /// Name of the blocks' contents, for instance model, cache group and element type. A directory written under another name
    /// is refused.
    #[setters(skip)]
    pub namespace: String,
    /// Bytes of all slabs together.
    #[setters(skip)]
    pub capacity_bytes: u64,
    /// Order of eviction.
    pub policy: PolicyKind,
    /// Keeps out blocks that are requested only once.
    #[setters(strip_option)]
    pub reuse: Option<ReuseFilter>,
    /// Number of blocks between two syncs; 1 makes every write durable before it returns.
    pub blocks_per_sync: u32,
    /// Whether reads bypass the system's page cache (on Linux, if the file system supports it). This suits a tier
    /// below one in memory, which keeps what will be read again: it takes half of the processor time and no memory
    /// for the cache.
    pub direct: bool,
    /// Queue into which the tier reports its blocks: those that it finds when it opens, and each change after that.
    #[setters(strip_option)]
    pub changes: Option<Changes>,
}

impl DiskConfig {
    /// Least recently used blocks are evicted, every block is admitted, 64 blocks are synced at a time, and reads go
    /// through the page cache.
    #[must_use]
    pub fn new(
        directory: impl Into<PathBuf>,
        layout: BlockLayout,
        namespace: impl Into<String>,
        capacity_bytes: u64,
    ) -> Self {
        Self {
            name: TierName::DISK,
            directory: directory.into(),
            layout,
            namespace: namespace.into(),
            capacity_bytes,
            policy: PolicyKind::Lru,
            reuse: None,
            blocks_per_sync: 64,
            direct: false,
            changes: None,
        }
    }
}
