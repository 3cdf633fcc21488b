#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod adapter_records;
mod ask;
mod block_ops;
mod crossing;
mod dense_notes;
mod engine;
mod error;
pub mod error_chain;
mod event;
pub mod fetch;
#[cfg(feature = "grammar")]
pub mod grammar;
pub mod handle;
mod host_tiers;
#[cfg(feature = "hub")]
pub mod hub;
mod kept_tuning;
pub mod kv_events;
mod kv_used;
pub mod live_view;
mod mask;
pub mod measured;
mod memory;
mod model;
mod note;
mod open;
mod options;
mod request;
mod rerank;
mod saves;
mod sequence;
pub mod snapshot;
mod sparse;
mod stopwatch;
mod text;
pub mod tiers;
#[cfg(feature = "tools")]
pub mod tools;
mod top;
pub mod tuning;
pub mod usage;
mod user_file;
pub mod verdicts;

pub use ask::{Answer, BlockingPieces, Chat, Pieces};
pub use attn_kernels::kernel::KvDtype;
pub use engine::Engine;
pub use error::{CheckpointError, Error};
pub use event::{CachedTokens, Clock, Event, FinishReason, Finished, PromptLogProbs, Started, Token, Usage};
#[cfg(feature = "grammar")]
pub use grammar::{Constraint, ConstraintError};
pub use handle::{
    BlockingReplicaStream, BlockingStream, Ended, EngineAdmin, EngineHandle, HandleOptions, Health,
    ReplicaStream, Replicas, Reply, Shutdown, Stream,
};
#[cfg(feature = "hub")]
pub use hub::HubError;
pub use kv_events::CacheEvents;
pub use kvblock::{Phase, SeqId, UnknownName};
pub use live_view::LiveView;
pub use mask::TokenMask;
pub use memory::host_available;
pub use model::Model;
pub use models::batch::StepOutput;
pub use models::kernel::top_logits::MAX_TOP;
pub use models::sampling::{
    Dry, LogProbs, LogitBias, Penalties, Sampler, Sampling, SamplingError, TokenBias, TokenLogProb,
};
pub use models::{
    ActivationType, Checkpoint, Crossing, Decoder, Dtype, IndexDtype, RandomSpec, WeightPlacement,
};
pub use models::{
    Conversation, Embedding, Lengths, LoadProgress, Loaded, Message, Pooling, SelectionPlace, Tokenizer,
};
pub use note::{Note, Notes};
pub use open::{EngineBuilder, ModelSource, open};
pub use options::{Demand, EngineOptions, LayerSplit, MAX_SEQUENCES, Preemption};
pub use prefetch::spec::TierSpec;
pub use request::{Request, RequestId};
pub use rerank::Reranker;
pub use saves::Saves;
pub use scheduler::{AdmitError, Policy as Order};
pub use sequence::{Sequence, StepWork};
pub use snapshot::Snapshot;
pub use sparse::Sparse;
pub use sparse_select::{Registry, Spec};
pub use stopwatch::{Stopwatch, TimedStep};
pub use text::{Piece, Text};
pub use top::most_likely;
