#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(feature = "chat")]
mod chat;
mod checkpoint;
mod config;
mod error;
pub mod sampling;
#[cfg(feature = "tokenizer")]
mod tokenizer;
mod weights;

// The crate whose types are part of this interface: the keys that a layer sees.
pub use kvblock;

#[cfg(feature = "chat")]
pub use chat::{ChatError, ChatTemplate, Conversation, Message};
pub use checkpoint::{Checkpoint, Quantized};
pub use config::{
    Activation, BlockNorms, CompressedConfig, Compressor, ConfigError, DecoderConfig, Embedding,
    ExpertPacking, Family, Gate, HyperConfig, IndexerConfig, LatentConfig, LayerConfig, Lengths, LogitScore,
    Mlp, MoeConfig, NsaConfig, Pairing, Pooling, QkNorm, Reach, Rope, RopeScaling, Router, Score,
    ShortFactors, Sizes, Temperature,
};
pub use error::Error;
#[cfg(feature = "tokenizer")]
pub use tokenizer::{DecodeStream, MAX_BLANKS, Tokenizer, TokenizerError};
pub use weights::{
    Array, CompressorPart, Dtype, Gguf, GgufError, GgufTensor, HyperPart, IntegerTensor, Naming,
    Quantization, RandomError, RandomSpec, RandomWeights, Role, Safetensors, Size, Tensor,
    UnknownQuantization, Value, WeightError, WeightSource, codes, dequantize, quantize,
};
