//! `pagoda completions` and `pagoda man`: the definitions of the flags for shells and for man.

use std::fs;
use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::Command;
use pagoda::Registry;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

fn definition() -> Command {
    Cli::definition(&Registry::builtin())
}

/// Prints the completions of a shell.
///
/// # Errors
/// If they cannot be written.
pub fn completions(args: CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "pagoda", &mut text);
    Ok(io::stdout().write_all(&text)?)
}

/// Prints the man page of the program, or writes one for each command.
///
/// # Errors
/// If they cannot be written, with the name of the folder.
pub fn man(args: &ManArgs) -> Result<()> {
    let Some(folder) = &args.out else {
        return Ok(clap_mangen::Man::new(definition()).render(&mut io::stdout())?);
    };
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(definition(), folder))
        .with_context(|| folder.display().to_string())
}
