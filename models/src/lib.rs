#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod config;
mod weights;

pub use config::{ConfigError, DecoderConfig, Family, Rope, RopeScaling};
pub use weights::{
    Array, Dtype, Gguf, GgufError, GgufTensor, Naming, Role, Safetensors, Tensor, Value, WeightError,
    WeightSource, dequantize,
};
