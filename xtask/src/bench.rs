//! `cargo xtask bench`: measures the engine on this machine.

mod e2e;
mod kernels;
mod plan;
mod policies;
mod replay;

use anyhow::{Result, ensure};
use pagoda::Registry;
use pagoda_cli::bench::{page, percentiles, serve, workload};

pub use plan::PlanKind;

use crate::cli::{BenchArgs, BenchSuite};

/// Runs the command.
///
/// # Errors
/// Errors of the engine.
pub fn run(args: &BenchArgs, registry: &Registry) -> Result<()> {
    let of_report = args.report.is_none() || args.suite == Some(BenchSuite::Policies);
    ensure!(of_report, "--report is of the suite policies: bench policies --report");
    ensure!(
        !args.shapes || args.suite == Some(BenchSuite::Kernels),
        "--shapes is of the suite kernels: bench kernels --shapes"
    );
    match args.suite {
        None | Some(BenchSuite::E2e) => e2e::run(args, registry),
        Some(BenchSuite::Kernels) => kernels::run(args),
        Some(BenchSuite::Policies) => policies::run(args, registry),
        Some(BenchSuite::Serve) => serve::run(&args.serve()),
    }
}
