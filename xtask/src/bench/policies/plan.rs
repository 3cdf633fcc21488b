//! Plans of `bench policies`: a RON file, or one of the two that are built in.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::needles::NAMES;
use crate::bench::plan;

/// Maximum length of a prompt with needles, in tokens.
const MAX_LENGTH: u32 = 1 << 24;

/// Policies, and what each is measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// SPECs of policies; `full` comes first, because the others are compared with it.
    pub(super) policies: Vec<String>,
    /// Number of prompt tokens per step.
    pub(super) chunk: u32,
    pub(super) texts: Vec<Text>,
    pub(super) needles: Vec<Needles>,
    /// Texts for which the host measures, for some queries of every step, the share of dense attention's mass
    /// in the attended blocks, and the share that query heads select individually. Selection then runs on the
    /// policy's CPU code, and steps are not timed.
    #[serde(default)]
    pub(super) recalls: Vec<Text>,
}

/// Likelihood of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::bench) struct Text {
    /// Number of tokens, from the start of the text.
    pub(in crate::bench) tokens: u32,
    /// Tokens from here on are decode steps.
    pub(in crate::bench) decode_from: u32,
    /// A UTF-8 file, relative to the working directory; by default the built-in text.
    #[serde(default)]
    pub(in crate::bench) file: Option<PathBuf>,
}

/// Needles in a haystack, for every combination of length and depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Needles {
    pub(super) task: Task,
    /// Approximate number of tokens in the prompt.
    pub(super) lengths: Vec<u32>,
    /// Position of the needle, from 0 (start) to 1 (end); several needles are placed at random instead.
    pub(super) depths: Vec<f64>,
    /// Number of seeds (0, 1, ...) of keys and positions.
    pub(super) samples: u32,
}

/// Task with hidden facts, as in RULER (arXiv 2404.06654).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Task {
    /// A pass key with five digits.
    PassKey,
    /// The number of a name.
    Single,
    /// The number of one name among several.
    MultiKey { keys: u32 },
    /// All numbers of one name.
    MultiValue { values: u32 },
    /// All variables that a chain of assignments gives one value.
    VariableTracking { hops: u32 },
}

impl Task {
    /// Lower-case name, for reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PassKey => "pass-key",
            Self::Single => "single",
            Self::MultiKey { .. } => "multi-key",
            Self::MultiValue { .. } => "multi-value",
            Self::VariableTracking { .. } => "variable-tracking",
        }
    }
}

impl Text {
    /// Checks the range of values.
    pub(in crate::bench) fn check(&self) -> Result<()> {
        let Self { tokens, decode_from, .. } = self;
        ensure!(*tokens >= 2, "tokens of a text is {tokens}, the least is 2, as the first has no likelihood");
        let inside = (1..=*tokens).contains(decode_from);
        ensure!(inside, "decode_from is {decode_from}, the limits are 1 and {tokens}");
        Ok(())
    }
}

impl Needles {
    fn check(&self) -> Result<()> {
        let Self { task, lengths, depths, samples } = self;
        for (name, len) in [("lengths", lengths.len()), ("depths", depths.len())] {
            ensure!(len > 0, "{task:?}: {name} is empty");
        }
        ensure!(*samples > 0, "{task:?}: samples is 0, the least is 1");
        let length = lengths.iter().find(|length| !(1..=MAX_LENGTH).contains(*length));
        ensure!(
            length.is_none(),
            "{task:?}: a length is {}, the limits are 1 and {MAX_LENGTH}",
            length.unwrap_or(&0)
        );
        let depth = depths.iter().find(|depth| !(0.0..=1.0).contains(*depth));
        ensure!(depth.is_none(), "{task:?}: a depth is {}, the limits are 0 and 1", depth.unwrap_or(&0.0));
        let (count, limit) = match *task {
            Task::PassKey | Task::Single => (1, 1),
            Task::MultiKey { keys: names } | Task::VariableTracking { hops: names } => (names, NAMES),
            Task::MultiValue { values } => (values, 64),
        };
        ensure!((1..=limit).contains(&count), "{task:?}: the limits are 1 and {limit}");
        Ok(())
    }
}

impl Plan {
    /// The plan of a file, or the built-in one, which is shorter for software drivers.
    ///
    /// # Errors
    /// If the file cannot be read, or values are out of range.
    pub(super) fn read(file: Option<&Path>, software: bool) -> Result<Self> {
        plan::read(
            file,
            match software {
                true => include_str!("../../../policies/cpu.ron"),
                false => include_str!("../../../policies/gpu.ron"),
            },
            Self::parse,
        )
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
        let Self { policies, chunk, texts, needles, recalls } = self;
        let first = policies.first().map_or("none", String::as_str);
        ensure!(
            first == "full",
            "the first policy is {first}; it is full, which the others are compared with"
        );
        let again = policies.iter().enumerate().find(|(at, policy)| policies[..*at].contains(policy));
        ensure!(again.is_none(), "policy {} is there twice", again.map_or("", |(_, policy)| policy));
        ensure!(*chunk > 0, "chunk is 0, the least is 1");
        let tasks = texts.len() + needles.len() + recalls.len();
        ensure!(tasks > 0, "the plan has no texts, needles or recalls");
        texts.iter().chain(recalls).try_for_each(Text::check)?;
        needles.iter().try_for_each(Needles::check)
    }

    /// Tokens of the longest sequence, including answers.
    pub(super) fn longest(&self) -> u32 {
        let needles = self.needles.iter().flat_map(|needles| &needles.lengths);
        let answered = needles.map(|length| length + super::ANSWER_TOKENS);
        let texts = self.texts.iter().chain(&self.recalls).map(|text| text.tokens);
        texts.chain(answered).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use sparse_select::Registry;

    use super::*;

    #[test]
    fn the_builtin_plans_name_policies_that_exist() {
        for software in [true, false] {
            let plan = Plan::read(None, software).unwrap();
            assert_eq!(plan.policies[0], "full");
            for spec in &plan.policies {
                Registry::builtin().build(&spec.parse().unwrap()).unwrap_or_else(|e| panic!("{spec}: {e}"));
            }
        }
    }

    #[test]
    fn every_plan_of_the_folder_is_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let plan = Plan::read(Some(&path), true).unwrap();
            for spec in &plan.policies {
                let built = Registry::builtin().build(&spec.parse().unwrap());
                assert!(built.is_ok(), "{}: {spec}: {:?}", path.display(), built.err());
            }
        }
    }

    #[test]
    fn values_out_of_range_are_told() {
        let refused = |change: fn(&mut Plan)| {
            let mut plan = Plan::read(None, true).unwrap();
            change(&mut plan);
            plan.check().unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(|p| p.policies.clear()), @"the first policy is none; it is full, which the others are compared with");
        insta::assert_snapshot!(refused(|p| p.policies.push("full".into())), @"policy full is there twice");
        insta::assert_snapshot!(refused(|p| p.chunk = 0), @"chunk is 0, the least is 1");
        insta::assert_snapshot!(refused(|p| p.texts[0].tokens = 1), @"tokens of a text is 1, the least is 2, as the first has no likelihood");
        insta::assert_snapshot!(refused(|p| p.needles[0].samples = 0), @"PassKey: samples is 0, the least is 1");
        insta::assert_snapshot!(refused(|p| p.needles[0].lengths.clear()), @"PassKey: lengths is empty");
        insta::assert_snapshot!(refused(|p| p.needles[0].lengths = vec![u32::MAX]), @"PassKey: a length is 4294967295, the limits are 1 and 16777216");
        insta::assert_snapshot!(refused(|p| (p.texts, p.needles, p.recalls) = Default::default()), @"the plan has no texts, needles or recalls");
        insta::assert_snapshot!(refused(|p| p.texts[0].decode_from = 9999), @"decode_from is 9999, the limits are 1 and 768");
        insta::assert_snapshot!(refused(|p| p.needles[0].depths[0] = 1.5), @"PassKey: a depth is 1.5, the limits are 0 and 1");
        insta::assert_snapshot!(refused(|p| p.needles[0].task = Task::MultiKey { keys: 0 }), @"MultiKey { keys: 0 }: the limits are 1 and 24");
    }
}
