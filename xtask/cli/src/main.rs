//! Entry point of `pagoda`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagoda_cli::order_adapters_here();
    pagoda_cli::main(&pagoda::Registry::builtin())
}
