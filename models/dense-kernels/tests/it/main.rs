//! Every dense kernel on the adapter that is there against its CPU reference, its layout, and its translations.

#[path = "../../../../attn-kernels/tests/it/adapter.rs"]
mod adapter;
mod codegen;
mod coop;
mod kernels;
mod layout;
mod random;
mod self_test;
