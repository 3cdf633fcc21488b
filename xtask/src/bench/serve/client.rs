//! Calls of OpenAI's API, whose answers are timed token by token.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::prompt::Prompt;
use super::sse::Events;
use crate::hub;

/// A server, and what it understands.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Client {
    http: reqwest::Client,
    base: Arc<str>,
    key: Option<Arc<str>>,
    pub(super) model: String,
    /// Whether the server knows fields that OpenAI's own does not: `ignore_eos` and `return_token_ids`.
    extended: bool,
}

/// An answer, with the times of its parts in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(in crate::bench) struct Answer {
    /// From the time at which the request was due to its sending: what the client itself was late.
    pub(in crate::bench) late_ms: f64,
    /// From then to the first part of the answer that has tokens.
    #[serde(rename = "ttft_ms")]
    pub(in crate::bench) first_ms: Option<f64>,
    /// Between such parts, each of which is one token with most servers.
    pub(in crate::bench) gaps_ms: Vec<f64>,
    /// From the time at which the request was due to the end.
    pub(in crate::bench) e2e_ms: f64,
    pub(in crate::bench) prompt_tokens: Option<u64>,
    pub(in crate::bench) cached_tokens: Option<u64>,
    /// As the server says, or the number of parts.
    pub(in crate::bench) output_tokens: u64,
    /// Cached tokens by tier, which Pagoda tells.
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
    pub(super) fn ttft_ms(&self) -> Option<f64> {
        self.first_ms
    }

    /// Mean time between tokens; `None` for fewer than two.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(super) fn mean_gap_ms(&self) -> Option<f64> {
        let sum: f64 = self.gaps_ms.iter().sum();
        (!self.gaps_ms.is_empty()).then(|| sum / self.gaps_ms.len() as f64)
    }
}

impl Client {
    /// Finds out the model of the server at `base`, such as `http://127.0.0.1:8080/v1`, and what it understands.
    ///
    /// # Errors
    /// If the server does not answer, or refuses a plain completion.
    pub(in crate::bench) async fn connect(base: &str, key: Option<&str>, probe: &Prompt) -> Result<Self> {
        let base = base.trim_end_matches('/');
        ensure!(
            !base.starts_with("https:") || cfg!(any(feature = "hub", feature = "s3")),
            "{base}: TLS is in programs that are built with --features hub, which is on by default"
        );
        hub::choose_cryptography();
        let http = reqwest::Client::builder().tcp_nodelay(true).build()?;
        let mut client =
            Self { http, base: base.into(), key: key.map(Arc::from), model: String::new(), extended: true };
        let models = client.get("/models").await?;
        let Some(model) = models["data"][0]["id"].as_str() else {
            bail!("{base}/models lists none: {models}")
        };
        client.model = model.to_owned();
        if client.ask(probe, 2, Instant::now()).await.error.is_some() {
            client.extended = false;
            if let Some(error) = client.ask(probe, 2, Instant::now()).await.error {
                bail!("{base} refuses a plain call: {error}");
            }
            eprintln!("{base}: answers may end early, because ignore_eos is refused");
        }
        Ok(client)
    }

    /// Returns a client for another address, which knows nothing yet of the server there.
    pub(in crate::bench) fn beside(&self, base: &str) -> Self {
        Self { base: base.into(), ..self.clone() }
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let text = self.text(path).await?;
        serde_json::from_str(&text).with_context(|| format!("{}{path}: {text}", self.base))
    }

    /// The body of a page below the base address.
    ///
    /// # Errors
    /// If the server does not answer, or with another status than 200.
    pub(in crate::bench) async fn text(&self, path: &str) -> Result<String> {
        let url = format!("{}{path}", self.base);
        let response = self.with_key(self.http.get(&url)).send().await.with_context(|| url.clone())?;
        let status = response.status();
        let text = response.text().await.with_context(|| url.clone())?;
        ensure!(status.is_success(), "{url}: {status}: {text}");
        Ok(text)
    }

    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends a request that was due at `due` and takes the answer. What fails is told in the answer.
    pub(in crate::bench) async fn ask(&self, prompt: &Prompt, tokens: u32, due: Instant) -> Answer {
        let mut answer = Answer { late_ms: ms_since(due), ..Answer::default() };
        if let Err(error) = self.stream(prompt, tokens, due, &mut answer).await {
            answer.error = Some(format!("{error:#}"));
        }
        answer.e2e_ms = ms_since(due);
        answer
    }

    async fn stream(&self, prompt: &Prompt, tokens: u32, due: Instant, answer: &mut Answer) -> Result<()> {
        let mut body = json!({
            "model": self.model, "temperature": 0, "stream": true, "stream_options": { "include_usage": true },
            "max_tokens": tokens,
        });
        let path = prompt.put(&mut body);
        if self.extended {
            body["ignore_eos"] = true.into();
            body["return_token_ids"] = prompt.is_ids().into();
        }
        let request =
            self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        let mut response = self.with_key(request).body(body.to_string()).send().await?;
        if !response.status().is_success() {
            bail!("{}: {}", response.status(), response.text().await?);
        }
        let (mut events, mut last) = (Events::default(), None);
        while let Some(bytes) = response.chunk().await? {
            for data in events.take(&bytes) {
                if data == "[DONE]" {
                    return Ok(());
                }
                if answer.take(&serde_json::from_str(&data).with_context(|| data.clone())?)? {
                    let now = ms_since(due);
                    match last.replace(now) {
                        None => answer.first_ms = Some(now),
                        Some(last) => answer.gaps_ms.push(now - last),
                    }
                }
            }
        }
        bail!("the stream ended without [DONE]")
    }
}

impl Answer {
    /// Takes an event; returns whether it has tokens.
    ///
    /// # Errors
    /// The error that it tells.
    fn take(&mut self, event: &Value) -> Result<bool> {
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

fn ms_since(due: Instant) -> f64 {
    due.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
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
}
