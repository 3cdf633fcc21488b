//! Targets of `fuzz` that read configurations, and plan caches for them.

#[path = "../../../../fuzz/src/config.rs"]
pub(super) mod config;
#[path = "../../../../fuzz/src/gguf.rs"]
pub(super) mod gguf;
#[path = "../../../../fuzz/src/mutate.rs"]
pub(super) mod mutate;
#[path = "../../../../fuzz/src/shapes.rs"]
mod shapes;
