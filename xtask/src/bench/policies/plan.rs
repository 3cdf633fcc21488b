//! Plans of `bench policies`: a RON file, or one of the two that are built in.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::bench::plan;
use pagoda_cli::bench::policies::ruler::Task;

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
    #[serde(default)]
    pub(super) needles: Vec<Needles>,
    /// Prompts of all tasks of RULER.
    #[serde(default)]
    pub(super) ruler: Vec<Ruler>,
    /// Texts on which the host measures, for some queries of every step, two shares: of dense attention's mass in the attended
    /// blocks, and of blocks that query heads select before the heads of a group are combined. Selection then runs on the
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
    /// Index of the first token that is computed in a decode step.
    pub(in crate::bench) decode_from: u32,
    /// A UTF-8 file, relative to the working directory; by default the built-in text.
    #[serde(default)]
    pub(in crate::bench) file: Option<PathBuf>,
}

/// Prompts of all thirteen tasks of RULER, for every length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ruler {
    /// Approximate number of tokens in the prompt.
    pub(super) lengths: Vec<u32>,
    /// Number of seeds (0, 1, ...) of a task.
    pub(super) samples: u32,
}

/// Needles in a haystack, for every combination of length and depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Needles {
    pub(super) task: Task,
    /// Approximate number of tokens in the prompt.
    pub(super) lengths: Vec<u32>,
    /// Positions of the one fact of a prompt, from 0 (start) to 1 (end); none for random places, as the paper has them.
    #[serde(default)]
    pub(super) depths: Vec<f64>,
    /// Number of seeds (0, 1, ...) of keys and positions.
    pub(super) samples: u32,
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
        ensure!(!lengths.is_empty(), "{task:?}: lengths is empty");
        let places = depths.is_empty() || task.has_depth();
        ensure!(places, "{task:?}: depths are given, but its facts stand at random places");
        ensure!(*samples > 0, "{task:?}: samples is 0, the least is 1");
        let length = lengths.iter().find(|length| !(1..=MAX_LENGTH).contains(*length));
        ensure!(
            length.is_none(),
            "{task:?}: a length is {}, the limits are 1 and {MAX_LENGTH}",
            length.unwrap_or(&0)
        );
        let depth = depths.iter().find(|depth| !(0.0..=1.0).contains(*depth));
        ensure!(depth.is_none(), "{task:?}: a depth is {}, the limits are 0 and 1", depth.unwrap_or(&0.0));
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
        let Self { policies, chunk, texts, needles, ruler, recalls } = self;
        let first = policies.first().map_or("none", String::as_str);
        ensure!(
            first == "full",
            "the first policy is {first}; it is full, which the others are compared with"
        );
        let again = policies.iter().enumerate().find(|(at, policy)| policies[..*at].contains(policy));
        ensure!(again.is_none(), "policy {} is there twice", again.map_or("", |(_, policy)| policy));
        ensure!(*chunk > 0, "chunk is 0, the least is 1");
        let tasks = texts.len() + needles.len() + ruler.len() + recalls.len();
        ensure!(tasks > 0, "the plan has no texts, needles, ruler or recalls");
        texts.iter().chain(recalls).try_for_each(Text::check)?;
        self.prompts().try_for_each(|needles| needles.check())
    }

    /// Needles, and RULER's tasks in its own form.
    pub(super) fn prompts(&self) -> impl Iterator<Item = Needles> {
        let of_ruler = self.ruler.iter().flat_map(|Ruler { lengths, samples }| {
            let all =
                |task| Needles { task, lengths: lengths.clone(), depths: Vec::new(), samples: *samples };
            Task::RULER.map(all)
        });
        self.needles.iter().cloned().chain(of_ruler)
    }

    /// Tokens of each sequence, including answers.
    fn tokens(&self) -> impl Iterator<Item = u32> {
        let answered = self.prompts().flat_map(|needles| {
            let answer = needles.task.answer_tokens();
            needles.lengths.into_iter().map(move |length| length + answer)
        });
        self.texts.iter().chain(&self.recalls).map(|text| text.tokens).chain(answered)
    }

    /// Number of tokens of the longest sequence, 0 if there is none.
    pub(super) fn longest(&self) -> u32 {
        self.tokens().max().unwrap_or(0)
    }

    /// Number of tokens of the shortest sequence.
    pub(super) fn shortest(&self) -> u32 {
        self.tokens().min().unwrap_or(0)
    }

    /// Leaves the sequences out that a context does not hold, and returns their tokens.
    pub(super) fn leave_out_beyond(&mut self, context: u32) -> Vec<u32> {
        let mut beyond: Vec<u32> = self.tokens().filter(|tokens| *tokens > context).collect();
        beyond.sort_unstable();
        beyond.dedup();
        for texts in [&mut self.texts, &mut self.recalls] {
            texts.retain(|text| text.tokens <= context);
        }
        // RULER's tasks differ in their answers, so they are kept one by one.
        self.needles = self.prompts().collect();
        self.ruler.clear();
        for needles in &mut self.needles {
            let answer = needles.task.answer_tokens();
            needles.lengths.retain(|length| length + answer <= context);
        }
        beyond
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
            super::super::check(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let Ok(plan) = Plan::read(Some(&path), true) else { continue };
            for spec in &plan.policies {
                let built = Registry::builtin().build(&spec.parse().unwrap());
                assert!(built.is_ok(), "{}: {spec}: {:?}", path.display(), built.err());
            }
        }
    }

    #[test]
    fn sequences_beyond_the_context_are_left_out() {
        let text = "Plan(policies: [\"full\"], chunk: 64, texts: [Text(tokens: 4096, decode_from: 9)], needles: [], \
                    ruler: [Ruler(lengths: [4000, 8000], samples: 1)], recalls: [Text(tokens: 9000, decode_from: 9)])";
        let mut plan = Plan::parse(text).unwrap();
        assert_eq!((plan.shortest(), plan.longest()), (4030, 9000));
        let before = plan.clone();
        assert!(plan.leave_out_beyond(9000).is_empty());
        assert!(plan.prompts().eq(before.prompts()));
        assert_eq!(plan.leave_out_beyond(8040), [8050, 8120, 8128, 9000]);
        assert_eq!((plan.longest(), plan.recalls.len(), plan.texts.len()), (8032, 0, 1));
        plan.leave_out_beyond(100);
        assert_eq!(plan.longest(), 0);
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
        insta::assert_snapshot!(refused(|p| (p.texts, p.needles, p.recalls) = Default::default()), @"the plan has no texts, needles, ruler or recalls");
        insta::assert_snapshot!(refused(|p| p.texts[0].decode_from = 9999), @"decode_from is 9999, the limits are 1 and 768");
        insta::assert_snapshot!(refused(|p| p.needles[0].depths[0] = 1.5), @"PassKey: a depth is 1.5, the limits are 0 and 1");
        insta::assert_snapshot!(refused(|p| p.needles[0].task = Task::MultiQuery), @"MultiQuery: depths are given, but its facts stand at random places");
    }
}
