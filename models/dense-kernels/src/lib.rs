#![cfg_attr(feature = "gpu", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "gpu"), doc = "Dense kernels of decoder language models in WGSL.")]
#![deny(unsafe_code)]

#[cfg(feature = "cpu")]
mod cast;
#[cfg(feature = "cpu")]
pub mod cpu;
pub mod kernel;
pub mod pack;
#[cfg(feature = "self-test")]
pub mod self_test;

// Crates whose types are part of this interface: devices and kernels, tensors of files.
pub use {attn_kernels, checkpoint};

// What files of models say of the matrices and rows that kernels compute.
pub use checkpoint::{Activation, Dtype, ExpertPacking, MoeConfig, Pairing, Router, Score, Tensor};
