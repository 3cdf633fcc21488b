//! Readers of checkpoints, configurations, tokenizers and chat templates against files and against hostile bytes.

// Targets of `fuzz` know the readers as part of `models`.
extern crate checkpoint as models;

mod alloc;
mod chat;
mod config;
mod config_gguf;
mod dequant;
mod embedding;
mod families;
mod gguf;
mod gguf_writer;
mod mutated;
mod mutations;
mod nsa;
mod published;
mod quantize;
mod quantized;
mod rope;
mod safetensors;
mod sampling;
mod smollm2;
#[expect(unreachable_pub, reason = "the package of fuzz exports it")]
mod targets;
mod tokenizer;
mod unigram;

use std::path::{Path, PathBuf};

use proptest::prelude::ProptestConfig;

/// `cases` for each property; `PROPTEST_CASES` asks for longer runs.
fn cases(cases: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(cases),
    }
}

/// A fixture of this crate, or one of the tiny models that decoders are tested with too.
fn fixture(name: &str) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = crate_folder.join("tests/fixtures").join(name);
    if own.exists() { own } else { tiny_models().join(name) }
}

/// The folder of tiny models.
fn tiny_models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}
