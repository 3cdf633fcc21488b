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

/// Environment variable that, set to any value, makes adapters run every kernel regardless of verdicts.
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
    /// A model of the Hugging Face hub is requested, but this build cannot fetch models.
    #[error("{reference}: models of the hub are fetched by builds with the feature hub")]
    NoHub {
        /// The model that was requested.
        reference: String,
    },
    /// A requested form cannot be enforced on an output.
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
        /// The policy, or `full` for dense attention.
        policy: String,
    },
    /// Results must be reproducible, but the policy lets measured times decide which steps select blocks.
    #[error(
        "sparse {policy}: min_tokens=measured lets times decide which steps select, and reproducible results depend on none"
    )]
    TimedReproducible {
        /// The policy.
        policy: String,
    },
    /// Results must be reproducible, but the policy lets the batch decide which sequences select blocks.
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
    /// A text is not the text form of any policy.
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
    /// The memory budget holds fewer than two KV blocks.
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
    /// The limits are so low that some request could never run.
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
    /// A request has stop texts, but does not ask for text.
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
    /// Some logits are infinite or not a number.
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
    /// The reader of a stream was too slow, so its request was cancelled.
    #[error("{unread} events of the stream were not read, which is the limit; the request was cancelled")]
    Unread {
        /// Number of events that the stream keeps.
        unread: usize,
    },
    /// A sequence ended before its answer was complete.
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
    /// After the device of one engine was lost, another engine restarted the request and drew a different token.
    #[error("the device was lost after {tokens} tokens, and another one goes on differently")]
    Moved {
        /// Number of tokens that both engines drew.
        tokens: usize,
    },
    /// The engine's thread panicked because of a bug in the engine, or in a caller's code that it runs.
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
