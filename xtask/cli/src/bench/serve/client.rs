//! Calls of OpenAI's API, whose answers are timed token by token.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use pagoda::hub;
use serde_json::{Value, json};

use super::answer::Answer;
use super::prompt::LoadPrompt;
use super::sse::Events;

/// A server, and the fields that it supports.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Client {
    http: reqwest::Client,
    base: Arc<str>,
    key: Option<Arc<str>>,
    pub(super) model: String,
    /// Whether the server knows fields that OpenAI's own does not: `ignore_eos` and `return_token_ids`.
    extended: bool,
}

impl Client {
    /// Finds out the model of the server at `base`, such as `http://127.0.0.1:8080/v1`, and the fields that it supports.
    ///
    /// # Errors
    /// If the server does not answer, or refuses a plain completion.
    pub(in crate::bench) async fn connect(base: &str, key: Option<&str>, probe: &LoadPrompt) -> Result<Self> {
        let base = base.trim_end_matches('/');
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

    /// Sends a request that was due at `due` and takes the answer. The answer contains any error.
    pub(in crate::bench) async fn ask(&self, prompt: &LoadPrompt, tokens: u32, due: Instant) -> Answer {
        let mut answer = Answer { late_ms: ms_since(due), ..Answer::default() };
        if let Err(error) = self.stream(prompt, tokens, due, &mut answer).await {
            answer.error = Some(format!("{error:#}"));
        }
        answer.e2e_ms = ms_since(due);
        answer
    }

    async fn stream(
        &self,
        prompt: &LoadPrompt,
        tokens: u32,
        due: Instant,
        answer: &mut Answer,
    ) -> Result<()> {
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

fn ms_since(due: Instant) -> f64 {
    due.elapsed().as_secs_f64() * 1e3
}
