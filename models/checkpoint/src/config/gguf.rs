//! Metadata of GGUF files: keys `ARCHITECTURE.something`, and facts implied by the tensor table.

mod keys;
mod layers;
mod plain;
mod rope;

pub(super) use self::{
    keys::{Keys, missing},
    layers::{set_experts, windows},
    plain::Plain,
};
