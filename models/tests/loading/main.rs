//! Checkpoint readers, configuration, tokenizer and chat templates against files and against hostile bytes.

mod config;
mod dequant;
mod gguf;
mod gguf_writer;
mod rope;
mod safetensors;

use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", name].iter().collect()
}
