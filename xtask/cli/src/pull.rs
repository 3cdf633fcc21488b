//! `pagoda pull`: fetches a model.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Result;

use crate::cli::PullArgs;
use crate::default_model;

/// Fetches the model if it is not there yet, and prints the path of its file or folder.
///
/// # Errors
/// If it cannot be fetched.
pub fn run(args: &PullArgs) -> Result<()> {
    let path = default_model::resolve(Some(Path::new(&args.model)))?;
    Ok(writeln!(io::stdout(), "{}", path.display())?)
}
