//! Entry point of `cargo xtask`.

use std::process::ExitCode;

fn main() -> ExitCode {
    order_adapters_here();
    xtask::main(&pagoda::Registry::builtin())
}

/// Turns Mesa's own selection of devices off: it asks for a Wayland display, and on a machine without one libwayland prints an
/// error for every instance. The engine orders adapters itself.
#[expect(unsafe_code, reason = "the environment is where Mesa looks")]
fn order_adapters_here() {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}
