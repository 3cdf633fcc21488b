//! Results of `bench serve`.

use std::io;

use anyhow::Result;
use serde::Serialize;

use super::load::Sent;
use super::own::Adapter;
use crate::bench::percentiles::Percentiles;
use crate::cli::{PromptForm, Slo};
use crate::report;

/// One load, and the measured results.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ServeRow {
    pub(super) workload: String,
    /// Address of the server; null for the one of this process.
    url: Option<String>,
    pub(super) model: String,
    form: PromptForm,
    /// Device of the server of this process.
    pub(super) adapter: Option<Adapter>,
    /// Conversations that arrive a second; null if they come all at once.
    pub(super) offered_per_s: Option<f64>,
    /// Number of turns of all conversations.
    requests: usize,
    failed: usize,
    /// Message of the first request that failed.
    error: Option<String>,
    prompt_tokens: u64,
    /// Share of the prompt tokens that the server had in a cache; null if it does not say.
    hit_rate: Option<f64>,
    output_tokens: u64,
    /// Time from the first request to the end of the last answer.
    duration_s: f64,
    requests_per_s: f64,
    output_tok_s: f64,
    /// Time from when a request was due to its first token.
    pub(super) ttft_ms: Percentiles,
    /// Time between tokens, of all answers together.
    pub(super) inter_token_ms: Percentiles,
    /// Mean time between the tokens of an answer, over the answers.
    per_token_ms: Percentiles,
    /// Time from when a request was due to its last token.
    latency_ms: Percentiles,
    /// Delay between the time at which a request was due and the time at which the client sent it.
    client_late_ms: Percentiles,
    slo: Option<Slo>,
    /// Number of requests whose answer kept the limits.
    pub(super) good: Option<usize>,
    /// Number of served requests per second that met the limits.
    pub(super) goodput_per_s: Option<f64>,
    #[serde(skip)]
    pub(super) sent: Vec<Sent>,
}

/// Values that all loads of a server have in common.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) url: Option<String>,
    pub(super) model: String,
    pub(super) form: PromptForm,
    pub(super) adapter: Option<Adapter>,
    pub(super) slo: Option<Slo>,
}

impl ServeRow {
    pub(super) fn new(
        setting: &Setting,
        workload: &str,
        offered_per_s: Option<f64>,
        sent: Vec<Sent>,
    ) -> Self {
        let whole = || sent.iter().map(|sent| &sent.answer).filter(|answer| answer.error.is_none());
        let sum = |of: fn(&Sent) -> Option<u64>| sent.iter().filter_map(of).sum::<u64>();
        let (prompt_tokens, cached) = (sum(|s| s.answer.prompt_tokens), sum(|s| s.answer.cached_tokens));
        let says = sent.iter().any(|sent| sent.answer.cached_tokens.is_some());
        let output_tokens = sum(|s| Some(s.answer.output_tokens));
        let first = sent.iter().map(|s| s.at_s).fold(f64::INFINITY, f64::min);
        let last = sent.iter().map(|s| s.at_s + s.answer.e2e_ms / 1e3).fold(0.0, f64::max);
        let duration_s = if sent.is_empty() { 0.0 } else { last - first };
        let a_second = |n: f64| if duration_s > 0.0 { n / duration_s } else { 0.0 };
        let good = setting.slo.map(|slo| sent.iter().filter(|s| s.answer.meets(slo)).count());
        Self {
            workload: workload.to_owned(),
            url: setting.url.clone(),
            model: setting.model.clone(),
            form: setting.form,
            adapter: setting.adapter.clone(),
            offered_per_s,
            requests: sent.len(),
            failed: sent.len() - whole().count(),
            error: sent.iter().find_map(|s| s.answer.error.clone()),
            prompt_tokens,
            hit_rate: says.then(|| count(cached) / count(prompt_tokens.max(1))),
            output_tokens,
            duration_s,
            requests_per_s: a_second(whole().count() as f64),
            output_tok_s: a_second(count(output_tokens)),
            ttft_ms: Percentiles::of(whole().filter_map(|answer| answer.ttft_ms()).collect()),
            inter_token_ms: Percentiles::of(whole().flat_map(|answer| answer.gaps_ms.clone()).collect()),
            per_token_ms: Percentiles::of(whole().filter_map(|answer| answer.mean_gap_ms()).collect()),
            latency_ms: Percentiles::of(whole().map(|answer| answer.e2e_ms).collect()),
            client_late_ms: Percentiles::of(sent.iter().map(|s| s.answer.late_ms).collect()),
            slo: setting.slo,
            good,
            goodput_per_s: good.map(|good| a_second(good as f64)),
            sent,
        }
    }

    /// The row with each of its requests, for a file.
    pub(super) fn whole(&self) -> Result<serde_json::Value> {
        let mut row = serde_json::to_value(self)?;
        let request = |sent: &Sent| -> Result<_> {
            let mut request = serde_json::to_value(&sent.answer)?;
            request["at_s"] = sent.at_s.into();
            Ok(request)
        };
        row["sent"] = self.sent.iter().map(request).collect::<Result<Vec<_>>>()?.into();
        Ok(row)
    }

    /// Prints the row as text or as a JSON line.
    #[expect(clippy::print_stdout, reason = "the command's result")]
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            return Ok(report::json_line(&mut io::stdout().lock(), self)?);
        }
        let offered = self.offered_per_s.map_or("at once".to_owned(), |rate| format!("{rate} a second"));
        println!(
            "{} ({offered}): {} requests, {} failed, {} + {} tokens in {:.2} s: {:.2} requests/s, {:.1} output tok/s",
            self.workload,
            self.requests,
            self.failed,
            self.prompt_tokens,
            self.output_tokens,
            self.duration_s,
            self.requests_per_s,
            self.output_tok_s,
        );
        for (name, times) in
            [("first token", self.ttft_ms), ("inter-token", self.inter_token_ms), ("whole", self.latency_ms)]
        {
            println!("    {name:12} {times}");
        }
        if let Some(hit_rate) = self.hit_rate {
            println!("    hit rate {hit_rate:.3}");
        }
        if let (Some(slo), Some(good), Some(goodput)) = (self.slo, self.good, self.goodput_per_s) {
            println!("    {good} of {} within {slo}: goodput {goodput:.2} requests/s", self.requests);
        }
        if let Some(error) = &self.error {
            println!("    failed: {error}");
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bench::serve::answer::Answer;

    fn sent() -> impl Strategy<Value = Sent> {
        let times = (0.0f64..10.0, 1.0f64..100.0, prop::collection::vec(0.1f64..50.0, 0..6));
        (times, any::<bool>(), any::<bool>()).prop_map(|((at_s, first, gaps_ms), fails, silent)| {
            let e2e_ms = first + gaps_ms.iter().sum::<f64>();
            let error = fails.then(|| "x".to_owned());
            let first_ms = (!silent).then_some(first);
            Sent { at_s, answer: Answer { first_ms, gaps_ms, e2e_ms, error, ..Answer::default() } }
        })
    }

    /// The definition, term by term.
    fn naive(sent: &[Sent], slo: Slo) -> (usize, f64) {
        let mut good = 0;
        let (mut first, mut last) = (f64::MAX, f64::MIN);
        for Sent { at_s, answer } in sent {
            first = first.min(*at_s);
            last = last.max(at_s + answer.e2e_ms / 1e3);
            let mut kept = answer.error.is_none();
            if let Some(limit) = slo.ttft {
                kept &= answer.first_ms.unwrap_or(f64::INFINITY) <= limit;
            }
            if let (Some(limit), false) = (slo.itl, answer.gaps_ms.is_empty()) {
                kept &= answer.gaps_ms.iter().sum::<f64>()
                    / f64::from(u32::try_from(answer.gaps_ms.len()).unwrap())
                    <= limit;
            }
            if let Some(limit) = slo.e2e {
                kept &= answer.e2e_ms <= limit;
            }
            good += usize::from(kept);
        }
        (good, f64::from(u32::try_from(good).unwrap()) / (last - first))
    }

    proptest! {
        #[test]
        fn goodput_is_what_its_definition_says(
            sent in prop::collection::vec(sent(), 1..40),
            limits in prop::array::uniform3(prop::option::of(1.0f64..120.0)),
        ) {
            let [ttft, itl, e2e] = limits;
            let slo = Slo { ttft, itl, e2e };
            let setting =
                Setting { url: None, model: String::new(), form: PromptForm::Ids, adapter: None, slo: Some(slo) };
            let row = ServeRow::new(&setting, "test", None, sent.clone());
            let (good, goodput) = naive(&sent, slo);
            prop_assert_eq!(row.good, Some(good));
            prop_assert!((row.goodput_per_s.unwrap() - goodput).abs() <= 1e-9 * goodput);
        }
    }

    #[test]
    fn nothing_sent_is_a_row_of_zeros() {
        let setting = Setting {
            url: None,
            model: String::new(),
            form: PromptForm::Text,
            adapter: None,
            slo: Some(Slo::default()),
        };
        let row = ServeRow::new(&setting, "test", None, Vec::new());
        assert_eq!((row.requests, row.good, row.goodput_per_s, row.duration_s), (0, Some(0), Some(0.0), 0.0));
    }
}
