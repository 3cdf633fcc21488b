//! Entry point of `cargo xtask`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagoda_cli::order_adapters_here();
    xtask::main(&pagoda::Registry::builtin())
}
