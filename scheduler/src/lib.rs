#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
mod complete;
mod config;
mod error;
mod forecast;
mod host;
mod pace;
mod placement;
mod plan;
mod prefix_index;
mod remote;
mod request;
mod restart;
mod scheduler;
mod sequence;
mod sequences;
mod step;
mod step_time;
mod swap;
mod waiting;

/// Types of blocks, sequences, tokens and cache configurations in the interface of this crate.
pub use kvblock;
/// End of a sequence, and the phase of a slice.
pub use kvblock::{Ending, Phase};

pub use access::AccessHistory;
pub use config::{Policy, Preemption, SchedulerConfig};
pub use error::{AdmitError, ConfigError};
pub use forecast::PrefetchRequest;
pub use pace::{Concurrency, Pace};
pub use placement::{Placed, Placement, PlacementConfig, PlacementPolicy, ReplicaLoad, Ticket};
pub use plan::{Admitted, BlockOp, HostBlockId, Load, SampleRow, Slice, StepPlan};
pub use prefix_index::{PrefixIndex, ReplicaId};
pub use request::{Finished, Request};
pub use scheduler::Scheduler;
pub use sequence::Status;
pub use step_time::StepTime;
