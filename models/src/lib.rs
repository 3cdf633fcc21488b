#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod batch;
mod config;
mod decoder;
mod error;
pub mod kernel;
mod kv;
mod matrix;
pub mod pack;
mod weights;

pub use config::{ConfigError, DecoderConfig, Family, Rope, RopeScaling};
pub use decoder::{Decoder, DecoderOptions};
pub use error::ModelError;
pub use kv::KvPool;
pub use weights::{
    Array, Dtype, Gguf, GgufError, GgufTensor, Naming, Role, Safetensors, Tensor, Value, WeightError,
    WeightSource, dequantize,
};
