//! Entry point of `cargo xtask`.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask::main(&pagoda::Registry::builtin())
}
