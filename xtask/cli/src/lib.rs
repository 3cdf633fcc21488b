//! The program `pagoda`: it generates text, chats, serves models over HTTP, and says what a machine lacks for that.
//!
//! `cargo xtask` has the same commands by this library, in addition to those for work on the sources.

pub mod auto;
pub mod bench;
pub mod chat;
pub mod cli;
pub mod default_model;
pub mod describe;
mod devices;
pub mod doctor;
pub mod generate;
pub mod ids_file;
pub mod interrupt;
pub mod model;
pub mod models_list;
pub mod open_model;
#[cfg(feature = "pdf")]
pub(crate) mod pdf;
pub mod progress;
pub mod pull;
pub mod references;
pub mod report;
pub mod score;
pub mod self_test;
pub mod serve;
pub mod setup;
pub mod tokenize;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use pagoda::{Registry, error_chain};

use crate::serve::{EXIT_ENGINE_FAILED, EngineFailed};
use cli::{Bench, Cli, Command, Defaults, Shared};
use interrupt::Interrupted;

/// Runs the command line of this process with the policies of `registry`, and turns its result into an exit code.
#[must_use]
pub fn main(registry: &Registry) -> ExitCode {
    exit(match Cli::read(registry).command {
        Command::Run(args) => generate::run(&args, Defaults::OfModel),
        Command::Shared(command) => run(command, registry),
        Command::Bench(Bench::Serve(args)) => bench::serve::run(&args),
        Command::Bench(Bench::Policies(args)) => bench::policies::run(&args, registry),
        Command::Completions(args) => describe::completions(args),
        Command::Man(args) => describe::man(&args),
    })
}

/// Prints the error of a command, and turns its result into an exit code.
#[must_use]
pub fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has read enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<Interrupted>() {
            Some(interrupted) => ExitCode::from(interrupted.code),
            None => {
                eprintln!("error: {}", error_chain::joined(error.as_ref()));
                ExitCode::from(exit_code(&error))
            }
        },
    }
}

/// The exit code of a command that failed: 70 for an engine that failed, and 1 for all else.
fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<EngineFailed>() { EXIT_ENGINE_FAILED } else { 1 }
}

/// Whether an error comes from writing to a closed standard output. Errors of network connections do not count: they
/// are wrapped in a context.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Turns Mesa's own selection of devices off: it asks for a Wayland display, and on a machine without one libwayland prints an
/// error for every instance. The engine orders adapters itself. Call it before another thread runs.
#[expect(unsafe_code, reason = "the environment is where Mesa looks")]
pub fn order_adapters_here() {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}

/// Runs a command that other programs share with this one.
///
/// # Errors
/// Those of the command.
pub fn run(command: Shared, registry: &Registry) -> Result<()> {
    match command {
        Shared::Chat(args) => chat::run(&args, registry),
        Shared::Serve(args) => serve::run(&args),
        Shared::Pull(args) => pull::run(&args),
        Shared::Models(args) => models_list::run(&args),
        Shared::Score(args) => score::run(&args),
        Shared::Tokenize(args) => tokenize::run(&args),
        Shared::Doctor(args) => doctor::run(&args),
    }
}

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
