//! Entry point of `cargo xtask`: reads the command line, runs the command, turns its result into an exit code.

use std::process::ExitCode;

use pagoda::error_chain;
use xtask::cli::{Cli, Command};
use xtask::interrupt::{EXIT_INTERRUPTED, Interrupted};
use xtask::{bench, ci, doctor, generate, kernels, score, select, test};

fn main() -> ExitCode {
    match run(Cli::read().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => {
            eprintln!("error: {}", error_chain::joined(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Generate(args) => generate::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Select(args) => select::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Ci => ci::run(),
        Command::Doctor(args) => doctor::run(&args),
        Command::Kernels(args) => kernels::run(&args),
    }
}
