#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod weights;

pub use weights::{
    Array, Dtype, Gguf, GgufError, GgufTensor, Naming, Role, Safetensors, Tensor, Value, WeightError,
    WeightSource, dequantize,
};
