//! Plans of `bench`: RON files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Reads the plan from the text of `file`, or from the text `built_in`, by `parse`.
///
/// # Errors
/// If the file cannot be read, or its text is not a valid plan.
pub fn read<T>(file: Option<&Path>, built_in: &str, parse: fn(&str) -> Result<T>) -> Result<T> {
    let Some(path) = file else { return parse(built_in) };
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

/// Whether a text calls itself a plan of the kind `name`, as `Report(..)` and `Turnover(..)` do.
pub fn is_called(text: &str, name: &str) -> bool {
    let code = text.lines().map(str::trim_start).find(|line| !line.is_empty() && !line.starts_with("//"));
    code.and_then(|line| line.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
}
