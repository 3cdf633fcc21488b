#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod batch;
mod cast;
mod chat;
mod checkpoint;
mod config;
#[cfg(feature = "cpu")]
pub mod cpu;
mod crossing;
mod decoder;
mod error;
mod fetch;
mod host_weights;
pub mod kernel;
mod kv;
mod matrices;
mod matrix;
mod modes;
pub mod pack;
pub mod sampling;
#[cfg(feature = "self-test")]
pub mod self_test;
mod sparse;
mod tokenizer;
pub mod tuning;
mod weights;

// Crates whose types are part of this interface: devices and kernels, blocks of the cache, tiers, policies.
pub use {attn_kernels, kvblock, prefetch, sparse_select};

pub use chat::{ChatError, ChatTemplate, Conversation, Message};
pub use checkpoint::{Checkpoint, Quantized, WeightMemory};
pub use config::{
    Activation, BlockNorms, CompressedConfig, Compressor, ConfigError, DecoderConfig, ExpertPacking, Family,
    Gate, HyperConfig, IndexerConfig, LatentConfig, LayerConfig, Mlp, MoeConfig, NsaConfig, Pairing, QkNorm,
    Reach, Rope, RopeScaling, Router, Score, ShortFactors, Sizes, Temperature,
};
pub use crossing::{
    ChunkCrossing, ChunkGrid, ChunkTimes, Crossing, ROWS as TIMED_ROWS, StepGrid, StepTimes, grouped,
    say_dense_below,
};
pub use decoder::{
    ActivationType, BlockRead, ChunkRehearsal, DecodeRehearsal, Decoder, DecoderOptions, LoadProgress,
    Loaded, Size, WeightSizes,
};
pub use error::ModelError;
pub use fetch::{
    FetchError, GEMMA_3_270M, ModelCache, ModelPackage, ModelPart, Progress, SMOLLM2_135M_INSTRUCT,
};
pub use host_weights::WeightPlacement;
pub use kv::{
    CachePart, HostMemory, HostTraffic, IndexDtype, KvOptions, KvPlan, KvPool, LayerCache, Offload,
    PoolOptions,
};
pub use modes::{AttentionForm, Mode};
pub use sparse::{Attended, FetchCost, Mean, PageTraffic, Place, Predictions, SparseOptions, Tally};
pub use tokenizer::{DecodeStream, MAX_BLANKS, Tokenizer, TokenizerError};
pub use weights::{
    Array, CompressorPart, Dtype, Gguf, GgufError, GgufTensor, HyperPart, IntegerTensor, Naming,
    Quantization, RandomError, RandomSpec, RandomWeights, Role, Safetensors, Tensor, UnknownQuantization,
    Value, WeightError, WeightSource, dequantize, quantize,
};
