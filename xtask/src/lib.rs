//! `cargo xtask`: the commands of `pagoda`, and tests, measurements and all else that work on the sources needs.

pub mod bench;
pub mod ci;
pub mod cli;
pub mod kernels;
pub mod pages;
pub mod portability;
pub mod select;
pub mod set_up;
pub mod test;
pub mod tree;

use std::process::ExitCode;

use anyhow::Result;
use pagoda::Registry;
use pagoda_cli::cli::Defaults;
use pagoda_cli::{default_model, generate, model, open_model, report, self_test, setup};

use cli::{Cli, Command};

/// Runs the command line of this process with the policies of `registry`, and turns its result into an exit
/// code. A program of three lines runs all commands with a policy of its own: see `examples/own_command_line.rs`.
#[must_use]
pub fn main(registry: &Registry) -> ExitCode {
    pagoda_cli::exit(run(Cli::read(registry).command, registry))
}

/// Runs a command.
///
/// # Errors
/// Those of the command.
pub fn run(command: Command, registry: &Registry) -> Result<()> {
    match command {
        Command::Generate(args) => {
            set_up::set_up(default_model::needs(
                args.engine.model.as_deref(),
                args.engine.random.is_some(),
            )?)?;
            generate::run(&args, Defaults::Greedy)
        }
        Command::Shared(command) => pagoda_cli::run(command, registry),
        Command::Select(args) => select::run(&args, registry),
        Command::Bench(args) => bench::run(&args, registry),
        Command::Test(args) => test::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Pages(args) => pages::run(&args),
        Command::Portability(args) => portability::run(&args),
        Command::PortabilityWorker(args) => portability::work(&args),
    }
}

/// The README's example, run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
