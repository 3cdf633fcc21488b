//! Entry point of `cargo xtask`: reads the command line, runs the command, turns its result into an exit code.

use std::process::ExitCode;

use xtask::cli::{Cli, Command};
use xtask::interrupt::{EXIT_INTERRUPTED, Interrupted};
use xtask::{bench, ci, doctor, generate, kernels, score, select, test};

fn main() -> ExitCode {
    match run(Cli::read().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => {
            eprintln!("error: {}", told_once(&error));
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

/// The error and its causes, each printed once: library errors often end with the text of their cause, and
/// also return it as their source.
fn told_once(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if told.contains(&cause) {
            continue;
        }
        if !told.is_empty() {
            told.push_str(": ");
        }
        told.push_str(&cause);
    }
    told
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let error =
            anyhow!("no such file").context("cannot read a.gguf: no such file").context("model a.gguf");
        assert_eq!(told_once(&error), "model a.gguf: cannot read a.gguf: no such file");
    }
}
