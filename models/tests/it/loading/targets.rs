//! Targets of `fuzz` that read nothing but files of models.

#[path = "../../../../fuzz/src/config.rs"]
pub(super) mod config;
#[path = "../../../../fuzz/src/gguf.rs"]
pub(super) mod gguf;
#[path = "../../../../fuzz/src/mutate.rs"]
pub(super) mod mutate;
#[path = "../../../../fuzz/src/safetensors.rs"]
pub(super) mod safetensors;
#[path = "../../../../fuzz/src/template.rs"]
pub(super) mod template;
#[path = "../../../../fuzz/src/tokenizer.rs"]
pub(super) mod tokenizer;
