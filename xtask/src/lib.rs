//! The command line of Pagoda, `cargo xtask`: it sets a machine up, runs the engine of the crate `pagoda`, tests and
//! measurements.

pub mod auto;
pub mod bench;
pub mod chat;
pub mod ci;
pub mod cli;
pub mod default_model;
pub mod doctor;
pub mod generate;
pub mod hub;
pub mod ids_file;
pub mod interrupt;
pub mod kernels;
pub mod model;
pub mod models_list;
pub mod open_model;
pub mod portability;
pub mod progress;
pub mod references;
pub mod report;
pub mod score;
pub mod select;
pub mod self_test;
pub mod serve;
pub mod setup;
pub mod test;
pub mod tokenize;
pub mod tree;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use pagoda::{Registry, error_chain};

use crate::serve::{EXIT_ENGINE_FAILED, EngineFailed};
use cli::{Cli, Command};
use interrupt::{EXIT_INTERRUPTED, Interrupted};

/// Runs the command line of this process with the policies of `registry`, and turns its result into an exit
/// code. A program of three lines runs all commands with a policy of its own: see `examples/own_command_line.rs`.
#[must_use]
pub fn main(registry: &Registry) -> ExitCode {
    match run(Cli::read(registry).command, registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(EXIT_INTERRUPTED),
        // Whoever reads the output has read enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain::joined(error.as_ref()));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The exit code of a command that failed: 70 for an engine that failed, and 1 for all else.
fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<EngineFailed>() { EXIT_ENGINE_FAILED } else { 1 }
}

/// Whether an error comes from writing to a closed standard output. Errors of connections have a context around them.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs a command.
///
/// # Errors
/// Those of the command.
pub fn run(command: Command, registry: &Registry) -> Result<()> {
    match command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args, registry),
        Command::Serve(args) => serve::run(&args),
        Command::Models(args) => models_list::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Select(args) => select::run(&args, registry),
        Command::Bench(args) => bench::run(&args, registry),
        Command::Test(args) => test::run(&args),
        Command::Ci => ci::run(),
        Command::Doctor(args) => doctor::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Portability(args) => portability::run(&args),
        Command::PortabilityWorker(args) => portability::work(&args),
    }
}

/// The README's example, run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_engine_has_an_exit_code_of_its_own() {
        let told = anyhow::Error::from(EngineFailed).context("beside others");
        assert_eq!([exit_code(&EngineFailed.into()), exit_code(&told)], [70, 70]);
        assert_eq!(exit_code(&anyhow::anyhow!("the port is taken")), 1);
    }
}
