#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod complete;
mod config;
mod error;
mod plan;
mod request;
mod scheduler;
mod sequence;
mod step;

pub use config::{Policy, SchedulerConfig};
pub use error::{AdmitError, ConfigError};
pub use plan::{Admitted, BlockOp, SampleRow, Slice, SliceKind, StepPlan};
pub use request::{FinishReason, Finished, Request};
pub use scheduler::Scheduler;
pub use sequence::Phase;
