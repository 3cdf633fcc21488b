//! Record of a call, which its handlers fill for the access log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

#[cfg(feature = "otel")]
use crate::traces::Work;

/// Record of a call: its key and its tokens, for the access log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record(Arc<Used>);

#[derive(Debug, Default)]
struct Used {
    key: OnceLock<String>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    output_tokens: AtomicU64,
    #[cfg(feature = "otel")]
    work: Work,
}

impl Record {
    /// Notes the name of the API key.
    pub(crate) fn set_key(&self, name: String) {
        let _ = self.0.key.set(name);
    }

    /// Sets the numbers of prompt tokens, of cached prompt tokens, and of output tokens so far.
    pub(crate) fn set_tokens(&self, prompt: u64, cached: u64, output: u64) {
        self.0.prompt_tokens.store(prompt, Ordering::Relaxed);
        self.0.cached_tokens.store(cached, Ordering::Relaxed);
        self.0.output_tokens.store(output, Ordering::Relaxed);
    }

    /// Work of the engine for the call.
    #[cfg(feature = "otel")]
    pub(crate) fn work(&self) -> &Work {
        &self.0.work
    }

    /// Name of the API key, if the call has one.
    pub(crate) fn key(&self) -> Option<&str> {
        self.0.key.get().map(String::as_str)
    }

    /// Number of prompt tokens, of cached prompt tokens, and of output tokens.
    pub(crate) fn tokens(&self) -> [u64; 3] {
        let Used { prompt_tokens, cached_tokens, output_tokens, .. } = &*self.0;
        [prompt_tokens, cached_tokens, output_tokens].map(|tokens| tokens.load(Ordering::Relaxed))
    }
}
