//! Checkpoint readers, configuration, tokenizer and chat templates against files and against hostile bytes.

mod alloc;
mod chat;
mod config;
mod config_gguf;
mod dequant;
mod families;
mod fetch;
mod gguf;
mod gguf_writer;
mod hostile;
mod mutated;
mod nsa;
mod published;
mod quantize;
mod quantized;
mod rope;
mod safetensors;
mod smollm2;
#[expect(unreachable_pub, reason = "the package of fuzz exports it")]
mod targets;
mod tokenizer;
mod unigram;

use std::path::PathBuf;

use proptest::prelude::ProptestConfig;

/// `cases` for each property; `PROPTEST_CASES` asks for longer runs.
fn cases(cases: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(cases),
    }
}

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", name].iter().collect()
}
