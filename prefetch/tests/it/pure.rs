//! Everything that needs no optional feature; one binary, so that it links once.

mod assemble;
mod board;
mod codec;
mod engine;
mod failure;
mod planner;
mod policy;
mod residency;
mod spec;
mod store;
mod tiers;

use kvblock::BlockHash;
use prefetch::tier::BlockLayout;

/// A hash whose first byte is `n`: prints as `h05000000`.
fn hash(n: u8) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[0] = n;
    BlockHash::from_bytes(bytes)
}

fn hashes(range: impl IntoIterator<Item = u8>) -> Vec<BlockHash> {
    range.into_iter().map(hash).collect()
}

/// Three shards of eight bytes.
fn layout() -> BlockLayout {
    BlockLayout::new(3, 8).expect("small and not empty")
}
