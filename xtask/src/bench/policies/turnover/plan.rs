//! Plans of turnover for `bench policies`: a RON file, or the one that is built in.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::history::WINDOWS;
use crate::bench::plan;
use crate::bench::policies::plan::Text;

/// Policies, and the text that they select on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename = "Turnover")]
pub(super) struct TurnoverPlan {
    /// SPECs of policies that select in decode.
    pub(super) policies: Vec<String>,
    /// Number of prompt tokens per step.
    pub(super) chunk: u32,
    /// The text, and where its decode steps begin.
    pub(super) text: Text,
}

impl TurnoverPlan {
    /// The plan of a file, or the built-in one.
    ///
    /// # Errors
    /// If the file cannot be read, or values are out of range.
    pub(super) fn read(file: Option<&Path>) -> Result<Self> {
        plan::read(file, include_str!("../../../../policies/turnover.ron"), Self::parse)
    }

    /// The plan in a text.
    ///
    /// # Errors
    /// A text that is none, and values out of range.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let plan: Self = ron::from_str(text)?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        let Self { policies, chunk, text } = self;
        ensure!(!policies.is_empty(), "policies is empty");
        ensure!(*chunk > 0, "chunk is 0, the least is 1");
        text.check()?;
        let (steps, least) = (text.tokens - text.decode_from, WINDOWS[WINDOWS.len() - 1] + 1);
        ensure!(
            steps >= least,
            "the plan has {steps} decode steps (tokens - decode_from), the least is {least}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sparse_select::Registry;

    use super::*;

    #[test]
    fn every_plan_of_the_folder_names_policies_that_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
        for name in ["turnover", "turnover-gemma3", "turnover-smollm2"] {
            let plan = TurnoverPlan::read(Some(&folder.join(name).with_extension("ron"))).unwrap();
            for spec in &plan.policies {
                Registry::builtin().build(&spec.parse().unwrap()).unwrap_or_else(|e| panic!("{spec}: {e}"));
            }
        }
    }

    #[test]
    fn values_out_of_range_are_told() {
        let refused = |change: fn(&mut TurnoverPlan)| {
            let mut plan = TurnoverPlan::read(None).unwrap();
            change(&mut plan);
            plan.check().unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(|p| p.policies.clear()), @"policies is empty");
        insta::assert_snapshot!(refused(|p| p.chunk = 0), @"chunk is 0, the least is 1");
        insta::assert_snapshot!(refused(|p| p.text.tokens = 1), @"tokens of a text is 1, the least is 2, as the first has no likelihood");
        insta::assert_snapshot!(refused(|p| p.text.decode_from = p.text.tokens - 16), @"the plan has 16 decode steps (tokens - decode_from), the least is 17");
    }
}
