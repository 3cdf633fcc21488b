//! Plans of `bench`: RON files.

use anyhow::Result;
pub(super) use pagoda_cli::bench::plan::{is_called, read};

use super::{policies, serve, workload};

/// Kinds of RON files that suites read. Plans of `bench e2e` are not among them, because they are read with the flags
/// of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanKind {
    /// Plans of `bench policies`.
    Policies,
    /// Plans of `bench serve`.
    Restart,
    /// Workloads of `bench serve`.
    Workload,
}

impl PlanKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Policies, Self::Restart, Self::Workload];

    /// Checks a text as its suite does before anything runs.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(self, text: &str) -> Result<()> {
        match self {
            Self::Policies => policies::check(text),
            Self::Restart => serve::restart::check(text),
            Self::Workload => workload::parse(text).map(drop),
        }
    }
}
