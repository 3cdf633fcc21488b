//! Readers of files and texts of others, as functions of bytes: an error or something that can be used, never a panic, a hang or
//! a large allocation.
//!
//! Coverage-guided in `main.rs`; the tests of the workspace include this file, run the corpora, and change them at random.

pub mod config;
pub mod disk;
pub mod gguf;
pub mod mutate;
pub mod plans;
pub mod policy;
pub mod remote;
pub mod safetensors;
pub mod select;
pub mod shapes;
pub mod template;
pub mod tiers;
pub mod tokenizer;

/// Something that reads bytes of others.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of its folder in `corpus`.
    pub name: &'static str,
    /// Reads the bytes, and returns whether the reader accepted them.
    pub run: fn(&[u8]) -> bool,
}

/// All targets that need no adapter.
pub const TARGETS: [Target; 11] = [
    Target { name: "config", run: config::run },
    Target { name: "disk", run: disk::run },
    Target { name: "gguf", run: gguf::run },
    Target { name: "plans", run: plans::run },
    Target { name: "policy", run: policy::run },
    Target { name: "remote", run: remote::run },
    Target { name: "safetensors", run: safetensors::run },
    Target { name: "select", run: select::run },
    Target { name: "template", run: template::run },
    Target { name: "tiers", run: tiers::run },
    Target { name: "tokenizer", run: tokenizer::run },
];
