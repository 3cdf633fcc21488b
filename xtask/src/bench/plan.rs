//! Plans of `bench policies` and `bench offload`: RON files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

/// The plan in `file`, or in the text `built_in`.
///
/// # Errors
/// If the file cannot be read, or its text is not a valid plan.
pub(super) fn read<T: DeserializeOwned>(file: Option<&Path>, built_in: &str) -> Result<T> {
    let Some(path) = file else { return Ok(ron::from_str(built_in)?) };
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    ron::from_str(&text).with_context(|| format!("{}", path.display()))
}
