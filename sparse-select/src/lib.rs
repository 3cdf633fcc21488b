#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "tests count small things"))]

pub mod attention;
mod blocks;
pub mod certificate;
pub mod digest;
pub mod dsa;
mod entry;
mod error;
pub mod heads;
pub mod layered;
pub mod measure;
pub mod method;
pub mod nsa;
mod phases;
pub mod policy;
#[cfg(feature = "presets")]
pub mod presets;
mod registry;
mod rng;
mod run;
mod selection;
mod spec;
pub mod topk;
pub mod v4;
pub mod xattn;

/// Tokens per block, and the phase of a stage.
pub use kvblock::{BlockSize, Phase};

pub use entry::{Build, Entry};
pub use error::{SelectError, SpecError};
pub use heads::{Heads, MAX_HEADS};
pub use phases::Phases;
pub use policy::{
    ByCompressed, ByDigests, ByHashes, Deployment, DigestKind, Energies, Input, MinTokens, Policy,
    PrefetchSettings, Ranking, Retrieved, SelectBy, Stage, Support,
};
pub use registry::{Registry, build};
pub use run::{MeasuredSelection, RunError, select};
pub use selection::{Selection, Strip};
pub use spec::{Key, Params, Spec};
