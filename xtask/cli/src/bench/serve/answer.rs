//! An answer of a server, timed token by token.

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::cli::Slo;

/// An answer, with the times of its parts in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(in crate::bench) struct Answer {
    /// Time from when the request was due to its sending: the delay of the client itself.
    pub(in crate::bench) late_ms: f64,
    /// Time from when the request was due to the first part of the answer with tokens.
    #[serde(rename = "ttft_ms")]
    pub(in crate::bench) first_ms: Option<f64>,
    /// Times between parts of the answer; with most servers a part is one token.
    pub(in crate::bench) gaps_ms: Vec<f64>,
    /// Time from when the request was due to the end.
    pub(in crate::bench) e2e_ms: f64,
    pub(in crate::bench) prompt_tokens: Option<u64>,
    pub(in crate::bench) cached_tokens: Option<u64>,
    /// Number of tokens as the server reports it, or the number of parts.
    pub(in crate::bench) output_tokens: u64,
    /// Cached tokens by tier, as Pagoda reports them.
    #[serde(skip)]
    pub(in crate::bench) tiers: Value,
    #[serde(skip)]
    pub(super) text: String,
    #[serde(skip)]
    pub(super) ids: Vec<u32>,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::bench) error: Option<String>,
}

impl Answer {
    /// Whether the answer arrived, within all limits.
    pub(super) fn meets(&self, slo: Slo) -> bool {
        let within = |limit: Option<f64>, ms: Option<f64>| match limit {
            None => true,
            Some(limit) => ms.is_some_and(|ms| ms <= limit),
        };
        self.error.is_none()
            && within(slo.ttft, self.ttft_ms())
            // An answer of one token has no time between tokens, which is within every limit.
            && within(slo.itl, Some(self.mean_gap_ms().unwrap_or(0.0)))
            && within(slo.e2e, Some(self.e2e_ms))
    }

    pub(super) fn ttft_ms(&self) -> Option<f64> {
        self.first_ms
    }

    /// Mean time between tokens; `None` for fewer than two.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(super) fn mean_gap_ms(&self) -> Option<f64> {
        let sum: f64 = self.gaps_ms.iter().sum();
        (!self.gaps_ms.is_empty()).then(|| sum / self.gaps_ms.len() as f64)
    }

    /// Takes an event; returns whether it has tokens.
    ///
    /// # Errors
    /// The error that it tells.
    pub(super) fn take(&mut self, event: &Value) -> Result<bool> {
        ensure!(event["error"].is_null(), "{}", event["error"]);
        let choice = &event["choices"][0];
        let parts = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        let before = (self.text.len(), self.ids.len());
        parts.into_iter().filter_map(Value::as_str).for_each(|text| self.text.push_str(text));
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        self.ids.extend(ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()));
        let usage = &event["usage"];
        if let Some(tokens) = usage["prompt_tokens"].as_u64() {
            self.prompt_tokens = Some(tokens);
            self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
            self.tiers = event["pagoda"]["cached_tokens"].clone();
        }
        let grown = before != (self.text.len(), self.ids.len());
        self.output_tokens =
            usage["completion_tokens"].as_u64().unwrap_or(self.output_tokens + u64::from(grown));
        Ok(grown)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_all_forms_are_taken() {
        let mut answer = Answer::default();
        let mut take = |event: Value| answer.take(&event).unwrap();
        assert!(!take(json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] })));
        assert!(take(json!({ "choices": [{ "delta": { "content": "a" } }] })));
        assert!(take(json!({ "choices": [{ "text": "b", "token_ids": [7, 8] }], "usage": null })));
        assert!(take(json!({ "choices": [{ "text": "", "token_ids": [9] }] })));
        assert!(!take(json!({ "choices": [{ "text": "", "finish_reason": "stop" }] })));
        let usage = json!({ "prompt_tokens": 5, "completion_tokens": 4, "prompt_tokens_details": { "cached_tokens": 2 } });
        assert!(!take(json!({ "choices": [], "usage": usage })));
        let Answer { text, ids, prompt_tokens, cached_tokens, output_tokens, .. } = &answer;
        assert_eq!((text.as_str(), ids.as_slice()), ("ab", &[7, 8, 9][..]));
        assert_eq!((*prompt_tokens, *cached_tokens, *output_tokens), (Some(5), Some(2), 4));
        assert!(
            answer.take(&json!({ "error": { "message": "no" } })).unwrap_err().to_string().contains("no")
        );
    }

    #[test]
    fn without_usage_parts_are_counted() {
        let mut answer = Answer::default();
        for text in ["a", "b", ""] {
            answer.take(&json!({ "choices": [{ "text": text }] })).unwrap();
        }
        assert_eq!((answer.output_tokens, answer.prompt_tokens), (2, None));
    }

    #[test]
    fn an_answer_is_good_within_all_limits() {
        let answer =
            Answer { first_ms: Some(40.0), gaps_ms: vec![10.0, 30.0], e2e_ms: 90.0, ..Answer::default() };
        let met = |text: &str| answer.meets(text.parse().unwrap());
        assert!(met("ttft=40ms,itl=20ms,e2e=90ms"));
        assert!(!met("ttft=39ms") && !met("itl=19ms") && !met("e2e=89ms"));
        let failed = Answer { error: Some("503".into()), ..answer.clone() };
        assert!(!failed.meets(Slo::default()) && answer.meets(Slo::default()));
        let silent = Answer { first_ms: None, ..answer };
        assert!(!silent.meets("ttft=1s".parse().unwrap()));
    }
}
