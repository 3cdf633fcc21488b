//! Plans of a restart for `bench serve`: a RON file, or one of the two that are built in.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::bench::plan;

/// Number of tokens that an answer adds to a prompt.
const ANSWER: u32 = 2;

/// Lengths of prompts, and how often each is measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RestartPlan {
    /// Seed of the prompts.
    pub(super) seed: u64,
    /// Tokens of prompts.
    pub(super) prompts: Vec<u32>,
    /// Number of prompts of each length.
    pub(super) repeats: u32,
}

impl RestartPlan {
    /// The plan of a file, or the one that is built in: a small one for software drivers.
    ///
    /// # Errors
    /// A file that cannot be read, and values out of range.
    pub(super) fn read(file: Option<&Path>, software: bool) -> Result<Self> {
        let built_in = match software {
            true => include_str!("../../../../workloads/restart-cpu.ron"),
            false => include_str!("../../../../workloads/restart-gpu.ron"),
        };
        plan::read(file, built_in, Self::parse)
    }

    /// The plan in a text.
    ///
    /// # Errors
    /// A text that is none, and values out of range.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let plan: Self = ron::from_str(text)?;
        ensure!(!plan.prompts.is_empty(), "prompts is empty");
        ensure!(plan.repeats > 0, "repeats is 0, the least is 1");
        Ok(plan)
    }

    /// Checks that prompts have a block to restore, and fit the context.
    ///
    /// # Errors
    /// The first one that does not, with the limits.
    pub(super) fn fits(&self, context: u32) -> Result<()> {
        let most = context.saturating_sub(ANSWER);
        for tokens in &self.prompts {
            ensure!(
                (32..=most).contains(tokens),
                "a prompt has {tokens} tokens, the limits are 32 and {most}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_checked() {
        for software in [true, false] {
            RestartPlan::read(None, software).unwrap().fits(8192).unwrap();
        }
        let plan = RestartPlan { seed: 0, prompts: vec![64, 31], repeats: 1 };
        assert_eq!(
            plan.fits(8192).unwrap_err().to_string(),
            "a prompt has 31 tokens, the limits are 32 and 8190"
        );
        assert_eq!(
            plan.fits(60).unwrap_err().to_string(),
            "a prompt has 64 tokens, the limits are 32 and 58"
        );
    }
}
