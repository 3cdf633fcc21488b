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
    /// Directory of the tier, created if missing, and locked while the tier is open. A directory that cannot be
    /// written is only read.
    #[setters(skip)]
    pub directory: PathBuf,
    /// Size and division of every block.
    #[setters(skip)]
    pub layout: BlockLayout,
    /// Name of the blocks' contents, for instance model, cache group and element type. A directory written under another name
    /// is refused.
    #[setters(skip)]
    pub namespace: String,
    /// Number of bytes of all slabs together.
    #[setters(skip)]
    pub capacity_bytes: u64,
    /// Order of eviction.
    pub policy: PolicyKind,
    /// Filter that keeps out blocks that are requested only once; `None` to admit every block.
    #[setters(strip_option)]
    pub reuse: Option<ReuseFilter>,
    /// Number of blocks between two syncs; 1 makes every write durable before it returns.
    pub blocks_per_sync: u32,
    /// Whether reads bypass the system's page cache (on Linux, if the file system supports it). Direct reads take
    /// half of the processor time and no memory for the cache. They suit a disk tier below a host tier, which keeps
    /// blocks that will be read again.
    pub direct: bool,
    /// Queue into which the tier reports its blocks: first the blocks that it finds when it opens, then each change.
    #[setters(strip_option)]
    pub changes: Option<Changes>,
}

impl DiskConfig {
    /// Options with these defaults: the least recently used blocks are evicted, every block is admitted, 64 blocks
    /// are synced at a time, and reads go through the page cache.
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
