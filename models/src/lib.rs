#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod batch;
mod cast;
mod crossing;
mod decoder;
mod error;
mod host_weights;
mod kv;
mod matrix;
mod modes;
mod pipeline;
mod sparse;
pub mod tuning;
mod weight_memory;

// Crates whose types are part of this interface: devices and kernels, blocks of the cache, tiers, policies.
pub use {attn_kernels, checkpoint, dense_kernels, kvblock, prefetch, sparse_select};

// Files of models, sampling parameters: all of the crate that reads them.
pub use checkpoint::{
    Activation, Array, BlockNorms, ChatError, ChatTemplate, Checkpoint, CompressedConfig, Compressor,
    CompressorPart, ConfigError, Conversation, DecodeStream, DecoderConfig, Dtype, Embedding, ExpertPacking,
    Family, Gate, Gguf, GgufError, GgufTensor, HyperConfig, HyperPart, IndexerConfig, IntegerTensor,
    LatentConfig, LayerConfig, Lengths, LogitScore, MAX_BLANKS, Message, Mlp, MoeConfig, Naming, NsaConfig,
    Pairing, Pooling, QkNorm, Quantization, Quantized, RandomError, RandomSpec, RandomWeights, Reach, Role,
    Rope, RopeScaling, Router, Safetensors, Score, ShortFactors, Size, Sizes, Temperature, Tensor, Tokenizer,
    TokenizerError, UnknownQuantization, Value, WeightError, WeightSource, dequantize, quantize, sampling,
};
pub use crossing::{
    ChunkCrossing, ChunkGrid, ChunkTimes, Crossing, ROWS as TIMED_ROWS, StepGrid, StepTimes, grouped,
    say_dense_below,
};
pub use decoder::{
    ActivationType, BlockRead, ChunkRehearsal, DecodeRehearsal, Decoder, DecoderOptions, LoadProgress,
    Loaded, WeightSizes,
};
#[cfg(feature = "cpu")]
pub use dense_kernels::cpu;
#[cfg(feature = "self-test")]
pub use dense_kernels::self_test;
pub use dense_kernels::{kernel, pack};
pub use error::ModelError;
pub use host_weights::WeightPlacement;
pub use kv::{
    CachePart, HostMemory, HostTraffic, IndexDtype, KvOptions, KvPlan, KvPool, LayerCache, Offload,
    PoolOptions,
};
pub use modes::{AttentionForm, Mode};
pub use pipeline::{Pipeline, Sent};
pub use sparse::{Attended, FetchCost, Mean, PageTraffic, Predictions, SelectionPlace, SparseOptions, Tally};
pub use weight_memory::WeightMemory;
