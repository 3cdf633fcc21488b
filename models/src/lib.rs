#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod batch;
mod chat;
mod checkpoint;
mod config;
pub mod cpu;
mod decoder;
mod error;
mod fetch;
pub mod kernel;
mod kv;
mod matrices;
mod matrix;
pub mod pack;
pub mod sampling;
#[cfg(feature = "self-test")]
pub mod self_test;
mod sparse;
mod tokenizer;
mod weights;

pub use chat::{ChatError, ChatTemplate, Message};
pub use checkpoint::Checkpoint;
pub use config::{
    Activation, CompressedConfig, Compressor, ConfigError, DecoderConfig, ExpertPacking, Family, HyperConfig,
    IndexerConfig, LatentConfig, LayerConfig, Mlp, MoeConfig, QkNorm, Reach, Rope, RopeScaling, Router,
    Score, Temperature,
};
pub use decoder::{ActivationType, BlockRead, Decoder, DecoderOptions, Size, WeightSizes};
pub use error::ModelError;
pub use fetch::{FetchError, ModelCache, ModelPackage, Progress, SMOLLM2_135M_INSTRUCT};
pub use kv::{CachePart, HostMemory, KvOptions, KvPlan, KvPool, LayerCache, Offload};
pub use sparse::{Attended, FetchCost, Mean, PageTraffic, Place, SparseOptions, Tally};
pub use tokenizer::{DecodeStream, MAX_BLANKS, Tokenizer, TokenizerError};
pub use weights::{
    Array, CompressorPart, Dtype, Gguf, GgufError, GgufTensor, HyperPart, IntegerTensor, Naming, RandomError,
    RandomSpec, RandomWeights, Role, Safetensors, Tensor, Value, WeightError, WeightSource, dequantize,
};
