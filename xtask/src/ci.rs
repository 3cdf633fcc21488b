//! `cargo xtask ci`: everything that must hold before a change lands, cheapest first.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cli::TestArgs;
use crate::test;

/// One run of cargo.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    args: Vec<&'static str>,
    rustdocflags: Option<&'static str>,
}

/// Crates that must also build alone and without default features: built with the workspace, they get the features
/// that other crates turn on, which hides what they lack.
const ALONE: [&str; 5] = ["kvblock", "sparse-select", "attn-kernels", "prefetch", "scheduler"];

/// Runs every check, and stops at the first that fails.
///
/// # Errors
///
/// When a check fails.
pub fn run() -> Result<()> {
    for step in steps() {
        let line = step.args.join(" ");
        eprintln!("$ cargo {line}");
        let begin = Instant::now();
        let mut cargo = test::cargo();
        cargo.args(&step.args);
        if let Some(flags) = step.rustdocflags {
            cargo.env("RUSTDOCFLAGS", flags);
        }
        let status = cargo.status().context("cargo cannot be run")?;
        ensure!(status.success(), "cargo {line} failed: {status}");
        eprintln!("  {:.1} s", begin.elapsed().as_secs_f64());
    }
    test::run(&TestArgs { args: Vec::new() })
}

fn steps() -> Vec<Step> {
    let step = |line: &'static str| Step { args: line.split(' ').collect(), rustdocflags: None };
    let alone = ALONE.map(|name| Step {
        args: ["clippy", "--package", name, "--no-default-features", "--", "-D", "warnings"].to_vec(),
        rustdocflags: None,
    });
    let mut steps = vec![step("fmt --all --check"), step("clippy --workspace --all-targets -- -D warnings")];
    steps.extend(alone);
    steps.push(Step { rustdocflags: Some("-D warnings"), ..step("doc --workspace --no-deps") });
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps() {
        let lines = steps().iter().map(|step| step.args.join(" ")).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!(lines, @"
        fmt --all --check
        clippy --workspace --all-targets -- -D warnings
        clippy --package kvblock --no-default-features -- -D warnings
        clippy --package sparse-select --no-default-features -- -D warnings
        clippy --package attn-kernels --no-default-features -- -D warnings
        clippy --package prefetch --no-default-features -- -D warnings
        clippy --package scheduler --no-default-features -- -D warnings
        doc --workspace --no-deps
        ");
    }
}
