//! `cargo xtask bench`: measures the engine on this machine.

mod e2e;
mod kernels;
mod median;
mod page;
mod percentiles;
mod plan;
pub(crate) mod policies;
mod replay;
pub(crate) mod serve;
mod workload;

use anyhow::{Result, ensure};
use pagoda::Registry;

pub use plan::PlanKind;

use crate::cli::{BenchArgs, BenchSuite};

/// Runs the command.
///
/// # Errors
/// Errors of the engine.
pub fn run(args: &BenchArgs, registry: &Registry) -> Result<()> {
    let of_report = args.report.is_none() || args.suite == Some(BenchSuite::Policies);
    ensure!(of_report, "--report is of the suite policies: bench policies --report");
    match args.suite {
        None | Some(BenchSuite::E2e) => e2e::run(args, registry),
        Some(BenchSuite::Kernels) => kernels::run(args),
        Some(BenchSuite::Policies) => policies::run(args, registry),
        Some(BenchSuite::Serve) => serve::run(args),
    }
}
