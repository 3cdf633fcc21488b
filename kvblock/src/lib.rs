//! Block management for paged KV caches.
#![forbid(unsafe_code)]

mod hash;
mod id;
pub mod v0;

pub use hash::BlockHash;
pub use id::{BlockId, BlockIdx, BlockSize, SeqId, SlotId, TokenIdx};
