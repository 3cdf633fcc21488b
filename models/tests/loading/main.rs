//! Checkpoint readers, configuration, tokenizer and chat templates against files and against hostile bytes.

mod alloc;
mod chat;
mod config;
mod dequant;
mod fetch;
mod gguf;
mod gguf_writer;
mod rope;
mod safetensors;
mod smollm2;
mod tokenizer;

use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", name].iter().collect()
}
