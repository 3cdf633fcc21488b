//! Configurations and GGUF files as whoever makes a checkpoint can write them, up to the caches that are planned for them.

use super::mutations::{files, read_all, run};
use super::targets;

#[test]
fn configurations() {
    run("config.json", &read_all(&files("config.json")), (150, usize::MAX), targets::config::run);
}

#[test]
fn gguf() {
    run("gguf", &read_all(&files("model.gguf")), (60, 16_384), targets::gguf::run);
}
