//! Configurations on their way to the caches of a decoder, with hostile fields and hostile bytes.

#[path = "../../checkpoint/tests/it/alloc.rs"]
mod alloc;
mod hostile;
mod mutated;
#[path = "../../checkpoint/tests/it/mutations.rs"]
mod mutations;
mod nsa;
#[expect(unreachable_pub, reason = "the package of fuzz exports it")]
mod targets;

use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    tiny_models().join(name)
}

/// The folder of tiny models.
fn tiny_models() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures"].iter().collect()
}
