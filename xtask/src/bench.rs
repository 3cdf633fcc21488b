//! `cargo xtask bench`: what the engine reaches on this machine.

mod chart;
mod e2e;
mod kernels;
mod policies;
mod replay;
mod svg;
mod workload;

use anyhow::{Result, bail};

use crate::cli::{BenchArgs, BenchSuite};

/// Runs the command.
///
/// # Errors
/// A suite that does not exist yet, and what the engine reports.
pub fn run(args: &BenchArgs) -> Result<()> {
    match args.suite {
        None | Some(BenchSuite::E2e) => e2e::run(args),
        Some(BenchSuite::Kernels) => kernels::run(args),
        Some(BenchSuite::Policies) => policies::run(args),
        Some(suite) => bail!("bench {suite:?}: only `e2e`, `kernels` and `policies` exist in this tree"),
    }
}
