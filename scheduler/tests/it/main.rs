//! Whole sessions against a model that is a hash function, and plans as timelines.

mod admission;
mod examples;
mod outputs;
mod placement;
mod serde;
mod soak;
mod support;
mod traces;
