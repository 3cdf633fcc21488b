//! Plans of `bench`: RON files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{offload, policies, restart, turnover, workload};

/// The plan that `parse` makes of the text in `file`, or of the text `built_in`.
///
/// # Errors
/// If the file cannot be read, or its text is not a valid plan.
pub(super) fn read<T>(file: Option<&Path>, built_in: &str, parse: fn(&str) -> Result<T>) -> Result<T> {
    let Some(path) = file else { return parse(built_in) };
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

/// Kinds of RON files that suites read. Plans of `bench e2e` are none: they are read with the flags of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanKind {
    /// Plans of `bench offload`.
    Offload,
    /// Plans of `bench policies`.
    Policies,
    /// Plans of `bench restart`.
    Restart,
    /// Plans of `bench turnover`.
    Turnover,
    /// Workloads of `bench serve`.
    Workload,
}

impl PlanKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Offload, Self::Policies, Self::Restart, Self::Turnover, Self::Workload];

    /// Checks a text as its suite does before anything runs.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(self, text: &str) -> Result<()> {
        match self {
            Self::Offload => offload::check(text),
            Self::Policies => policies::check(text),
            Self::Restart => restart::check(text),
            Self::Turnover => turnover::check(text),
            Self::Workload => workload::parse(text).map(drop),
        }
    }
}
