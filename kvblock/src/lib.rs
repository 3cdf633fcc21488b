#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod capacity;
mod config;
mod content;
mod coordinator;
pub mod e4m3;
mod error;
mod event;
mod extra_keys;
mod free_queue;
mod hash;
mod id;
mod layout;
mod lifecycle;
mod lookup;
mod manager;
mod needs;
mod pool;
mod spec;
mod stats;
mod table;
mod unknown_name;
pub mod v0;

pub use cache::{Allocation, BlockCopy, KvCache, SlotRequest};
pub use config::{KvCacheConfig, KvCacheGroup};
pub use content::SeqContent;
pub use coordinator::PrefixHit;
pub use error::{AllocError, CapacityError, ConfigError, LayoutError};
pub use event::{CacheEvent, Medium, StoredBlocks};
pub use extra_keys::{ExtraKey, ExtraKeys, MultimodalItem, PromptEmbeds};
pub use hash::{BlockHash, BlockHasher, CacheKey, HashAlgorithm, HashChain};
pub use id::{BlockId, BlockIdx, BlockSize, GroupId, SeqId, SlotId, TokenId, TokenIdx};
pub use layout::{CacheLayout, CacheTensor, LayoutOptions, merge_specs, tuples_per_group};
pub use lifecycle::{Ending, Phase};
pub use needs::{GroupBlock, PrefixNeeds};
pub use pool::{BlockPool, PoolMemory, PoolOptions};
pub use spec::{AttentionKind, KvCacheSpec, KvDtype, LengthLimits, PageLayout, Reach};
pub use stats::{HitCount, PrefixStats};
pub use table::BlockTable;
pub use unknown_name::UnknownName;
