//! Plans of the report: policies by shares of the prompt, so that one plan holds at every length.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use pagoda::KvDtype;
use serde::Deserialize;

use super::super::ruler::Task;
use crate::bench::plan;

/// Granularity of budgets in tokens, so that they fill blocks of any usual size.
const TOKENS: u32 = 64;

/// Policies, lengths and KV types, and what each combination is measured on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename = "Report")]
pub(super) struct ReportPlan {
    /// SPECs of policies, in addition to dense attention. `{10%}` in one stands for that share of the prompt's tokens,
    /// `{10%/16}` for the blocks of 16 tokens that hold it.
    pub(super) policies: Vec<String>,
    /// Tokens of prompts.
    pub(super) lengths: Vec<u32>,
    /// KV types in addition to the one of `--kv-dtype`, which comes first.
    #[serde(default)]
    pub(super) kv_dtypes: Vec<KvDtype>,
    /// Number of tokens of the text after a prompt, given as decode steps, whose likelihood is the loss.
    pub(super) scored: u32,
    /// Number of tokens of the answer of a timed request.
    pub(super) answer: u32,
    /// Tasks with known answers. Each length has prompts of every task.
    #[serde(default)]
    pub(super) tasks: Vec<Task>,
    /// Number of seeds (0, 1, ...) of a task.
    #[serde(default)]
    pub(super) samples: u32,
}

impl ReportPlan {
    /// The plan of a file, or the built-in one, which is shorter for software drivers.
    ///
    /// # Errors
    /// If the file cannot be read, or values are out of range.
    pub(super) fn read(file: Option<&Path>, software: bool) -> Result<Self> {
        let built_in = match software {
            true => include_str!("../../../../policies/report-cpu.ron"),
            false => include_str!("../../../../policies/report.ron"),
        };
        plan::read(file, built_in, Self::parse)
    }

    /// The short plan that `--sparse auto` runs on a model that was not measured.
    pub(super) fn short() -> Result<Self> {
        Self::parse(include_str!("../../../../policies/auto.ron"))
    }

    /// The plan in a text.
    ///
    /// # Errors
    /// A text that is none, and values out of range.
    fn parse(text: &str) -> Result<Self> {
        let plan: Self = ron::from_str(text)?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        let Self { policies, lengths, kv_dtypes: _, scored, answer, tasks, samples } = self;
        ensure!(!policies.is_empty(), "the plan has no policies");
        ensure!(!lengths.is_empty(), "the plan has no lengths");
        let short = lengths.iter().find(|length| **length < TOKENS);
        ensure!(short.is_none(), "a length is {}, the least is {TOKENS}", short.unwrap_or(&0));
        ensure!(*scored >= 2, "scored is {scored}, the least is 2, as the last token has no likelihood");
        ensure!(*answer >= 2, "answer is {answer}, the least is 2, as the first token is the prefill's");
        ensure!(
            tasks.is_empty() || *samples > 0,
            "samples is 0, the least is 1, as there are {} tasks",
            tasks.len()
        );
        policies.iter().try_for_each(|policy| spec_at(policy, lengths[0]).map(drop))
    }

    /// Number of tokens that may follow a prompt.
    pub(super) fn behind(&self) -> u32 {
        let answers = self.tasks.iter().map(|task| task.answer_tokens());
        answers.chain([self.scored, self.answer]).max().unwrap_or(0)
    }

    /// The lengths of prompts that fit in a context, ascending, and the plan's lengths that do not. A length that leaves no
    /// room for an answer is cut. If no length fits, the longest possible prompt replaces them.
    ///
    /// # Errors
    /// If the context holds no prompt and answer at all.
    pub(super) fn lengths_within(&self, context: u32) -> Result<(Vec<u32>, Vec<u32>)> {
        let room = context.saturating_sub(self.behind());
        let least = TOKENS + self.behind();
        ensure!(
            room >= TOKENS,
            "the context length is {context}, a prompt and its answer take at least {least}"
        );
        let (within, beyond): (Vec<u32>, Vec<u32>) =
            self.lengths.iter().partition(|length| **length <= context);
        let mut lengths: Vec<u32> = within.into_iter().map(|length| length.min(room)).collect();
        if lengths.is_empty() {
            lengths.push(room);
        }
        lengths.sort_unstable();
        lengths.dedup();
        Ok((lengths, beyond))
    }
}

/// Whether a text names itself a plan of a report, not one of policies on texts and needles.
#[must_use]
pub fn names(text: &str) -> bool {
    plan::is_called(text, "Report")
}

/// Checks the text of a plan.
///
/// # Errors
/// A text that is none, and values out of range.
pub fn check(text: &str) -> Result<()> {
    ReportPlan::parse(text).map(drop)
}

/// A policy for prompts of `tokens` tokens: each `{..}` is replaced by its share of them.
///
/// # Errors
/// If one is not `{P%}` or `{P%/BLOCK}`.
pub(super) fn spec_at(policy: &str, tokens: u32) -> Result<String> {
    let mut spec = String::new();
    let mut rest = policy;
    while let Some((before, behind)) = rest.split_once('{') {
        let value = behind.split_once('}').and_then(|(share, behind)| Some((value(share, tokens)?, behind)));
        let (value, behind) = value.with_context(|| {
            format!("policy {policy}: {{{behind} does not begin with a share, as {{10%}} or {{10%/16}} does")
        })?;
        spec += &format!("{before}{value}");
        rest = behind;
    }
    Ok(spec + rest)
}

/// `10%` of the tokens in whole multiples of [`TOKENS`], or `10%/16` of them in blocks of 16, at least one.
fn value(share: &str, tokens: u32) -> Option<u32> {
    let (percent, block) = share.split_once('/').unwrap_or((share, ""));
    let percent: f64 = percent.trim().strip_suffix('%')?.parse().ok()?;
    let block: u32 = if block.is_empty() { TOKENS } else { block.trim().parse().ok().filter(|n| *n > 0)? };
    if !(percent > 0.0 && percent <= 100.0) {
        return None;
    }
    let blocks = (f64::from(tokens) * percent / 100.0 / f64::from(block)).ceil().max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the tokens")]
    let blocks = blocks as u32;
    Some(if share.contains('/') { blocks } else { blocks * block })
}

#[cfg(test)]
mod tests {
    use sparse_select::Registry;

    use super::*;

    #[test]
    fn shares_become_tokens_and_blocks() {
        let at = |policy: &str, tokens| spec_at(policy, tokens).unwrap();
        assert_eq!(at("quest:page_budget={10%/16}", 32_768), "quest:page_budget=205");
        assert_eq!(at("quest:page_budget={10%/16}", 8192), "quest:page_budget=52");
        assert_eq!(
            at("kvcomp:topk_tokens={10%},length_threshold={10%}", 8192),
            "kvcomp:topk_tokens=832,length_threshold=832"
        );
        assert_eq!(at("quest:page_budget={0.01%/16}", 512), "quest:page_budget=1");
        assert_eq!(at("gsa:sparse_ratio=0.1", 8192), "gsa:sparse_ratio=0.1");
        for wrong in [
            "quest:page_budget={10}",
            "quest:page_budget={10%",
            "quest:page_budget={0%}",
            "q:b={10%/0}",
            "q:b={x%}",
        ] {
            let told = spec_at(wrong, 8192).unwrap_err().to_string();
            assert!(told.contains("does not begin with a share"), "{told}");
        }
    }

    #[test]
    fn lengths_beyond_the_context_are_left_out() {
        let plan = ReportPlan::read(None, false).unwrap();
        let within = |context| plan.lengths_within(context).unwrap();
        assert_eq!(within(1 << 20), (vec![8192, 32_768], vec![]));
        assert_eq!(within(32_768), (vec![8192, 32_768 - 512], vec![]));
        assert_eq!(within(8192), (vec![8192 - 512], vec![32_768]));
        assert_eq!(within(2048), (vec![2048 - 512], vec![8192, 32_768]));
        let told = plan.lengths_within(512).unwrap_err().to_string();
        insta::assert_snapshot!(told, @"the context length is 512, a prompt and its answer take at least 576");
    }

    #[test]
    fn the_built_in_plans_name_policies_that_exist() {
        for plan in [ReportPlan::read(None, false), ReportPlan::read(None, true), ReportPlan::short()] {
            let plan = plan.unwrap();
            for (policy, length) in
                plan.policies.iter().flat_map(|p| plan.lengths.iter().map(move |l| (p, *l)))
            {
                let spec = spec_at(policy, length).unwrap();
                let built = Registry::builtin().build(&spec.parse().unwrap());
                assert!(built.is_ok(), "{spec}: {:?}", built.err());
            }
        }
    }

    #[test]
    fn values_out_of_range_are_told() {
        let refused = |change: fn(&mut ReportPlan)| {
            let mut plan = ReportPlan::read(None, true).unwrap();
            change(&mut plan);
            plan.check().unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(|p| p.policies.clear()), @"the plan has no policies");
        insta::assert_snapshot!(refused(|p| p.lengths.clear()), @"the plan has no lengths");
        insta::assert_snapshot!(refused(|p| p.lengths.push(1)), @"a length is 1, the least is 64");
        insta::assert_snapshot!(refused(|p| p.scored = 1), @"scored is 1, the least is 2, as the last token has no likelihood");
        insta::assert_snapshot!(refused(|p| p.answer = 1), @"answer is 1, the least is 2, as the first token is the prefill's");
        insta::assert_snapshot!(refused(|p| (p.tasks, p.samples) = (vec![Task::PassKey], 0)), @"samples is 0, the least is 1, as there are 1 tasks");
        insta::assert_snapshot!(refused(|p| p.policies[0] = "quest:page_budget={5}".into()), @"policy quest:page_budget={5}: {5} does not begin with a share, as {10%} or {10%/16} does");
    }
}
