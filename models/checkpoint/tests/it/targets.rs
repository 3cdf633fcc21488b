//! Targets of `fuzz` that read nothing but files of models.

/// Caches are planned above this crate.
pub(super) mod config {
    pub use super::shapes::use_shapes as use_sizes;
}
#[path = "../../../../fuzz/src/gguf.rs"]
pub(super) mod gguf;
#[path = "../../../../fuzz/src/mutate.rs"]
pub(super) mod mutate;
#[path = "../../../../fuzz/src/safetensors.rs"]
pub(super) mod safetensors;
#[path = "../../../../fuzz/src/shapes.rs"]
mod shapes;
#[path = "../../../../fuzz/src/template.rs"]
pub(super) mod template;
#[path = "../../../../fuzz/src/tokenizer.rs"]
pub(super) mod tokenizer;
