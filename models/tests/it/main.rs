//! Checkpoint readers, kernels and decoders against references, on the adapter that is there.

#[path = "../../../attn-kernels/tests/it/adapter.rs"]
mod adapter;
mod codegen;
mod coop;
mod decoder;
mod examples;
mod kernels;
mod layout;
mod loading;
mod paper;
mod self_test;
mod tuning;
