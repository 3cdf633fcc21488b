//! Why an engine does not open, or refuses a request.

use std::path::PathBuf;
use std::sync::Arc;

use attn_kernels::gpu::GpuError;
use kvblock::AllocError;
pub use models::checkpoint::Error as CheckpointError;
use models::sampling::SamplingError;
use models::{ChatError, ModelError, TokenizerError, WeightError};
use prefetch::spec::TierSpec;
use scheduler::AdmitError;
use sparse_select::Spec;

use crate::event::FinishReason;
use crate::fetch::FetchError;
use crate::request::RequestId;
use crate::tiers::error::TiersError;

/// If this variable is set, to anything, adapters run every kernel regardless of verdicts.
pub(crate) const IGNORE: &str = "PAGODA_IGNORE_SELF_TEST";

/// Any error from opening a model to the last token of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A checkpoint is missing or broken.
    #[error("model {name}")]
    Open {
        /// Path of the checkpoint, or its text form if its weights are random.
        name: String,
        /// The reason.
        source: Box<CheckpointError>,
    },
    /// The default model cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A model of the Hugging Face hub cannot be had.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] crate::hub::HubError),
    /// A model of the Hugging Face hub, in a build that fetches none.
    #[error("{reference}: models of the hub are fetched by builds with the feature hub")]
    NoHub {
        /// The model that was requested.
        reference: String,
    },
    /// An output cannot be kept to a form.
    #[cfg(feature = "grammar")]
    #[error(transparent)]
    Constraint(#[from] crate::grammar::ConstraintError),
    /// A text is given to a model that has no tokenizer.
    #[error("the model has no tokenizer: give token ids")]
    NoTokenizer,
    /// A reranker has no chat template.
    #[error(
        "the model ranks documents, and has no chat template that makes a prompt of a query and a document"
    )]
    NoChatTemplate,
    /// A text cannot be encoded, or tokens cannot be decoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template does not take the messages.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The model does not load or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A kernel was found wrong on this adapter by the self-test, and no other kernel can replace it.
    #[error("{source}; {IGNORE}=1 runs it all the same")]
    WrongKernel {
        /// The variant, the adapter, and the mode that does not run there.
        source: GpuError,
    },
    /// A certificate was requested of a policy that has none.
    #[error("sparse {policy} has no bound of the attention mass that it keeps, so nothing is certified")]
    NoCertificate {
        /// The policy; `full` without one.
        policy: String,
    },
    /// Measured times would decide which steps select, though results must be reproducible.
    #[error(
        "sparse {policy}: min_tokens=measured lets times decide which steps select, and reproducible results depend on none"
    )]
    TimedReproducible {
        /// The policy.
        policy: String,
    },
    /// The batch would decide which sequences select, though results must be reproducible.
    #[error(
        "sparse {policy}: steps of fewer than {requests} decoding sequences stay dense, and reproducible results do not \
         depend on a batch"
    )]
    BatchReproducible {
        /// The policy.
        policy: String,
        /// Number of sequences from which the policy selects.
        requests: u32,
    },
    /// No policy has this text form.
    #[error(transparent)]
    Spec(#[from] sparse_select::SpecError),
    /// The policy was set up for another model.
    #[error(transparent)]
    Deployment(#[from] sparse_select::SelectError),
    /// The policy does not fit the cache.
    #[error("sparse {spec}")]
    Sparse {
        /// The policy.
        spec: Box<Spec>,
        /// The reason.
        source: Box<ModelError>,
    },
    /// Memory for less than two KV blocks.
    #[error(
        "{budget_bytes} bytes for the KV cache hold {blocks} blocks of {block_bytes} bytes, 2 are needed"
    )]
    KvMemory {
        /// Memory for the pool.
        budget_bytes: u64,
        /// Number of blocks that fit.
        blocks: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// More KV blocks than the device has room for.
    #[error("kv_blocks {wanted}: the device has room for {blocks} (a buffer holds {limit})")]
    KvBlocks {
        /// Number of blocks that was requested.
        wanted: u32,
        /// Number of blocks that fit.
        blocks: u32,
        /// Number of blocks that fit in the largest buffer.
        limit: u32,
    },
    /// The KV tiers do not open, or do not fit the model.
    #[error("kv_tiers {spec}")]
    KvTiers {
        /// The tiers.
        spec: Box<TierSpec>,
        /// The reason.
        source: Box<TiersError>,
    },
    /// Limits under which some request could never run.
    #[error(transparent)]
    Limits(#[from] scheduler::ConfigError),
    /// The KV cache cannot be built.
    #[error(transparent)]
    Cache(#[from] kvblock::ConfigError),
    /// A token id outside the vocabulary.
    #[error("token id {id} at position {position} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Position of the token in the prompt.
        position: usize,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// Stop texts of a request without text.
    #[error("stop texts need text, but the request is for token ids alone or the model has no tokenizer")]
    StopText,
    /// Sampling parameters out of their range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A request that could never finish.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// A sequence that outgrows the KV pool.
    #[error("KV of the first {end} of {tokens} tokens")]
    Alloc {
        /// Number of tokens whose KV was needed.
        end: usize,
        /// Number of tokens of the sequence.
        tokens: usize,
        /// The reason.
        source: AllocError,
    },
    /// Logits that have an infinity, or something that is no number.
    #[error("non-finite logits after {tokens} tokens")]
    NonFinite {
        /// Number of tokens of the sequence that were computed.
        tokens: usize,
    },
    /// Too many requests wait for their start.
    #[error("{waiting} requests are waiting, the limit is {max_waiting}")]
    QueueFull {
        /// Number of requests that wait.
        waiting: usize,
        /// Maximum number.
        max_waiting: usize,
    },
    /// Too many prompt tokens wait for their start.
    #[error("{tokens} tokens beside {waiting} that are waiting, the limit is {max_waiting_tokens}")]
    QueueTokens {
        /// Number of tokens of the refused prompt.
        tokens: u64,
        /// Number of tokens that wait.
        waiting: u64,
        /// Maximum number.
        max_waiting_tokens: u64,
    },
    /// A stream whose reader is too slow; its request was cancelled.
    #[error("{unread} events of the stream were not read, which is the limit; the request was cancelled")]
    Unread {
        /// Number of events that the stream keeps.
        unread: usize,
    },
    /// An answer did not come to its end.
    #[error("{id}: {}", reason.of_failure())]
    Unanswered {
        /// The request.
        id: RequestId,
        /// Reason why the sequence ended.
        reason: FinishReason,
    },
    /// The engine has stopped, or takes no more requests because it is about to.
    #[error("the engine has stopped")]
    Stopped,
    /// The engine failed, and all its requests with it.
    #[error("the engine failed")]
    Failed {
        /// The reason.
        source: Arc<Error>,
    },
    /// The engine that began the request anew, after the device of another engine was lost, drew another token than
    /// that one.
    #[error("the device was lost after {tokens} tokens, and another one goes on differently")]
    Moved {
        /// Number of tokens that both engines drew.
        tokens: usize,
    },
    /// The engine's thread panicked, because of a bug in it or in code that it calls for others.
    #[error("the engine's thread panicked: {message}")]
    Panicked {
        /// Message of the panic.
        message: String,
    },
    /// The system refuses a thread.
    #[error("the engine gets no thread")]
    Thread {
        /// The reason.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}
