#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod complete;
mod config;
mod error;
mod host;
mod plan;
mod remote;
mod request;
mod scheduler;
mod sequence;
mod step;

pub use config::{Policy, Preemption, SchedulerConfig};
pub use error::{AdmitError, ConfigError};
pub use plan::{Admitted, BlockOp, HostBlockId, Load, SampleRow, Slice, SliceKind, StepPlan};
pub use request::{FinishReason, Finished, Request};
pub use scheduler::Scheduler;
pub use sequence::Phase;
