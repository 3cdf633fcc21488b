//! `cargo xtask ci`: everything that must hold before a change lands, cheapest first.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cli::TestArgs;
use crate::test;

/// One run of cargo.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    args: Vec<&'static str>,
    /// An environment variable with its value, for this run only.
    variable: Option<(&'static str, &'static str)>,
}

/// Crates that must also build alone and without default features: in a build of the workspace they get the
/// features that other crates enable, which hides missing ones.
const ALONE: [&str; 5] = ["kvblock", "sparse-select", "attn-kernels", "prefetch", "scheduler"];

/// Runs every check, and stops at the first that fails.
///
/// # Errors
///
/// When a check fails.
pub fn run() -> Result<()> {
    for step in steps() {
        let line = step.line();
        eprintln!("$ {line}");
        let begin = Instant::now();
        let mut cargo = test::cargo();
        cargo.args(&step.args);
        cargo.envs(step.variable);
        let status = cargo.status().context("cargo cannot be run")?;
        ensure!(status.success(), "{line} failed: {status}");
        eprintln!("  {:.1} s", begin.elapsed().as_secs_f64());
    }
    test::run(&TestArgs { args: Vec::new() })
}

fn steps() -> Vec<Step> {
    let step = |line: &'static str| Step { args: line.split(' ').collect(), variable: None };
    let alone = ALONE.map(|name| Step {
        args: ["clippy", "--package", name, "--no-default-features", "--", "-D", "warnings"].to_vec(),
        variable: None,
    });
    let mut steps = vec![
        step("fmt --all --check"),
        step("clippy --workspace --all-targets --features xtask/s3 -- -D warnings"),
    ];
    steps.extend(alone);
    let docs = step("doc --workspace --no-deps");
    steps.push(Step { variable: Some(("RUSTDOCFLAGS", "-D warnings")), ..docs });
    // In a separate target folder: the flag affects every crate, and would make the next build start from
    // scratch.
    let ring = step("test --package prefetch --lib --target-dir target/loom");
    steps.push(Step { variable: Some(("RUSTFLAGS", "--cfg loom")), ..ring });
    steps
}

impl Step {
    /// The step as typed in a shell.
    fn line(&self) -> String {
        let variable = self.variable.map_or(String::new(), |(name, value)| format!("{name}='{value}' "));
        format!("{variable}cargo {}", self.args.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps() {
        let lines = steps().iter().map(Step::line).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!(lines, @"
        cargo fmt --all --check
        cargo clippy --workspace --all-targets --features xtask/s3 -- -D warnings
        cargo clippy --package kvblock --no-default-features -- -D warnings
        cargo clippy --package sparse-select --no-default-features -- -D warnings
        cargo clippy --package attn-kernels --no-default-features -- -D warnings
        cargo clippy --package prefetch --no-default-features -- -D warnings
        cargo clippy --package scheduler --no-default-features -- -D warnings
        RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
        RUSTFLAGS='--cfg loom' cargo test --package prefetch --lib --target-dir target/loom
        ");
    }
}
