//! Errors of loading or running a model.

use attn_kernels::gpu::GpuError;

use crate::sampling::SamplingError;
use crate::{AttentionForm, ConfigError, DecoderConfig, Dtype, IndexDtype, Mode, WeightError};

/// Error of loading a model or running a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Weights cannot be read, a configuration is not usable, or sampling is impossible.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A tensor does not have the shape that the configuration gives.
    #[error("tensor {name} has shape {shape:?}, the configuration asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// The shape that the configuration gives.
        expected: Vec<usize>,
    },
    /// A tensor has a NaN or infinite element that no later check would find.
    #[error("tensor {name} holds {value} at element {element}, which must be finite")]
    NotFinite {
        /// The tensor.
        name: String,
        /// Index of the element in the tensor.
        element: usize,
        /// Value of the element.
        value: f32,
    },
    /// A table of experts names an expert that does not exist.
    #[error("tensor {name} sends token {token} to expert {expert}, there are {num_experts}")]
    Expert {
        /// The tensor.
        name: String,
        /// Id of the token.
        token: usize,
        /// The expert.
        expert: i64,
        /// Number of experts of the layer.
        num_experts: u32,
    },
    /// An output head differs from the embedding, though the configuration says that they are tied.
    #[error("tensor {name} differs from the embedding, to which tie_word_embeddings ties it")]
    Untied {
        /// The tensor.
        name: String,
    },
    /// A row of a matrix is not a whole number of quantisation blocks.
    #[error("tensor {name} has rows of {width} elements, not a multiple of {multiple} like its neighbours")]
    Width {
        /// The tensor.
        name: String,
        /// Number of elements of a row of the tensor.
        width: usize,
        /// Divisor that the width must have.
        multiple: usize,
    },
    /// Tensors that one kernel reads together have different types.
    #[error("tensor {name} is {dtype}, but {other_name} beside it is {other}: they must be of one type")]
    MixedTypes {
        /// The tensor.
        name: String,
        /// Type of the tensor.
        dtype: Dtype,
        /// The other tensor.
        other_name: String,
        /// The type of the other tensor.
        other: Dtype,
    },
    /// The forward pass does not support a part of an architecture.
    #[error("the model needs {feature}, which this decoder does not have")]
    Unsupported {
        /// The missing part.
        feature: &'static str,
    },
    /// A mode does not work with the attention of the model.
    #[error("{mode} needs {lacks}; the model has {form}")]
    Mode {
        /// The mode.
        mode: Mode,
        /// Attention of the model.
        form: AttentionForm,
        /// The missing part.
        lacks: &'static str,
    },
    /// A format of index keys is set for a model without an indexer.
    #[error("index keys in {dtype} need an indexer, which the model does not have")]
    NoIndexer {
        /// The format.
        dtype: IndexDtype,
    },
    /// Index keys in fp8 need a rotation that their length does not permit.
    #[error(
        "index keys in fp8 need heads of a power of two of dimensions, the indexer's have {head_dim}; f16 takes any"
    )]
    IndexWidth {
        /// Number of dimensions of a head.
        head_dim: u32,
    },
    /// Blocks that a sparse policy selects are not whole blocks of the cache.
    #[error(
        "{policy} selects blocks of {select} tokens, which is not a power of two from 8 on and a multiple of the cache's {block_size}"
    )]
    SelectBlock {
        /// The policy.
        policy: &'static str,
        /// Number of tokens per block of the policy.
        select: u32,
        /// Number of tokens per block of the cache.
        block_size: u32,
    },
    /// A policy selected among more blocks than the sequence has.
    #[error("{policy} selected among {stated} blocks, the sequence has {blocks}")]
    Selection {
        /// The policy.
        policy: &'static str,
        /// Number of blocks of the selection.
        stated: u32,
        /// Number of blocks of the sequence, of the policy's size.
        blocks: u32,
    },
    /// A policy that skips keys inside the attention kernel cannot do what only selections can do.
    #[error("{policy} leaves keys out inside the attention kernel: it cannot {asked}")]
    Skips {
        /// The policy.
        policy: &'static str,
        /// The requested service.
        asked: &'static str,
    },
    /// A policy has a correction, which only kernels apply, and cannot do what was requested.
    #[error("{policy}: kernels do correction=true after their attention: it cannot {asked}")]
    Corrects {
        /// The policy.
        policy: &'static str,
        /// The requested service.
        asked: &'static str,
    },
    /// The memory budget for weights on the device is below the minimum.
    #[error(
        "{budget_bytes} bytes for weights on the device are too few: {needed_bytes} are needed, {fixed_bytes} of them for \
         embedding, output head and vectors, the others for two of the largest layers"
    )]
    WeightBudget {
        /// Memory for the weights.
        budget_bytes: u64,
        /// Minimum number of bytes.
        needed_bytes: u64,
        /// Bytes of weights that are always on the device.
        fixed_bytes: u64,
    },
    /// The layers cannot be divided between devices as requested.
    #[error("{layers} layers cannot be split over {} devices as {given:?}: each has some, and all have an owner", given.len())]
    Stages {
        /// Number of layers of the model.
        layers: u32,
        /// Layers of each device.
        given: Vec<u32>,
    },
    /// A model whose layers are split over devices lacks something that the split needs.
    #[error("layers split over several devices need {lacks}")]
    StagesLack {
        /// The missing part.
        lacks: &'static str,
    },
    /// The device does not support blocks on the host, or not in these sizes.
    #[error("KV blocks in memory of the host need {lacks}")]
    Offload {
        /// The missing part.
        lacks: &'static str,
    },
    /// Threads that read blocks from disk cannot be started.
    #[error("threads that read KV blocks from the disk do not start: {reason}")]
    Readers {
        /// The system's reason.
        reason: String,
    },
    /// A block on disk that a copy or a read needs cannot be read.
    #[error(transparent)]
    Spill(#[from] prefetch::spill::SpillError),
    /// The device's pool is too small for a ring.
    #[error("a device pool of {blocks} KV blocks has no room for a ring, which needs {needed}")]
    DevicePool {
        /// Number of blocks of the pool.
        blocks: u32,
        /// Minimum number of blocks: the smallest ring, and the null block or the smallest selection.
        needed: u32,
    },
    /// The partitions of a sequence are larger than a slot of the ring.
    #[error("{needed} blocks of the host in one chunk, a slot of the ring has {slot_blocks}")]
    Ring {
        /// Number of blocks of the largest chunk.
        needed: usize,
        /// Number of blocks of a slot.
        slot_blocks: u32,
    },
    /// The slots of the device cannot hold the pages of all selecting rows of a step.
    #[error(
        "a step needs room for {needed} pages of selected blocks at one time, the device pool has {slots}"
    )]
    PageSlots {
        /// Number of pages of each KV head.
        needed: u32,
        /// Number of slots of the device pool.
        slots: u32,
    },
    /// A launch does not fit the buffers of its kernel.
    #[error(transparent)]
    Launch(#[from] attn_kernels::kernel::LaunchError),
    /// A sparse policy cannot select from its input.
    #[error(transparent)]
    Select(#[from] sparse_select::SelectError),
    /// Kernels do not support a block size.
    #[error("block size {block_size} is not a power of two from 4 on")]
    BlockSize {
        /// Number of tokens per block.
        block_size: u32,
    },
    /// The caches of the layers cannot share blocks.
    #[error("the caches of the layers: {0}")]
    Layout(#[from] kvblock::LayoutError),
    /// A step, a copy, a read or a write names a block outside of the pool.
    #[error("block {block} is outside of the pool of {blocks}")]
    Block {
        /// The block.
        block: u32,
        /// Number of blocks of the pool.
        blocks: u32,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} at position {position} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Position of the token.
        position: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
}

impl From<WeightError> for ModelError {
    fn from(error: WeightError) -> Self {
        Self::Checkpoint(error.into())
    }
}

impl From<ConfigError> for ModelError {
    fn from(error: ConfigError) -> Self {
        Self::Checkpoint(error.into())
    }
}

impl From<SamplingError> for ModelError {
    fn from(error: SamplingError) -> Self {
        Self::Checkpoint(error.into())
    }
}

impl Mode {
    /// Rejects the mode if the model lacks what it needs.
    pub(crate) fn check(self, config: &DecoderConfig) -> Result<(), ModelError> {
        let form = AttentionForm::of(config);
        self.lacks(form).map_or(Ok(()), |lacks| Err(ModelError::Mode { mode: self, form, lacks }))
    }
}
