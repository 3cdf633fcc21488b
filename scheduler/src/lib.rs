#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod complete;
mod config;
mod error;
mod forecast;
mod host;
mod plan;
mod prefix_chunks;
mod remote;
mod request;
mod scheduler;
mod sequence;
mod sparse;
mod step;
mod waiting;

pub use config::{Policy, Preemption, SchedulerConfig};
pub use error::{AdmitError, ConfigError};
pub use forecast::PrefetchWish;
pub use plan::{Admitted, BlockOp, HostBlockId, Load, SampleRow, Slice, SliceKind, StepPlan};
pub use prefix_chunks::{PREFIX_CHUNK_CAPACITY, PrefixChunk, PrefixChunkError, prefix_chunks};
pub use request::{FinishReason, Finished, Request};
pub use scheduler::Scheduler;
pub use sequence::Phase;
pub use sparse::{AccessHistory, SparseInput, SparseMeta, SparseRequest};
