//! Settings of a server, and the load that it takes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use derive_setters::Setters;
use pagoda::Model;

use crate::connections::Connections;
use crate::keys::ApiKey;
#[cfg(feature = "kv-events")]
use crate::kv_events::KvPublisher;
use crate::kv_source::KvEventSource;
use crate::metrics::MetricsNames;
#[cfg(feature = "otel")]
use crate::traces::Traces;

/// Number of bytes of a body per token of the model's context. Even long words in JSON's longest escapes need no
/// more.
const BODY_BYTES_PER_TOKEN: usize = 64;

/// Number of bodies of the maximum size that are held at one time.
const HELD_BODIES: usize = 16;

/// Number of bytes that a body may always have, even if the context is short.
const BODY_BYTES_MIN: usize = 4 << 20;

/// Settings of a server, and the load that it takes on. The bounds of the queue are options of the
/// [handle](pagoda::HandleOptions).
#[derive(Debug, Clone, Setters)]
#[non_exhaustive]
pub struct Options {
    /// The model that the engine runs: its tokenizer and chat template turn text into tokens.
    #[setters(skip)]
    pub model: Arc<Model>,
    /// Name of the model in requests and replies.
    #[setters(skip)]
    pub model_name: String,
    /// Further names of the model.
    pub model_aliases: Vec<String>,
    /// Whether to refuse calls for other models. Otherwise, the server's model answers calls for any model.
    pub strict_model: bool,
    /// Whether to refuse fields that change nothing, instead of naming them in the reply.
    pub strict: bool,
    /// Maximum number of tokens of prompt and answer together, as the engine allows.
    pub context_length: u32,
    /// API keys that the server accepts; if there are none, calls need no key.
    pub api_keys: Vec<ApiKey>,
    /// The file that the keys come from, which is read again at each SIGHUP.
    #[setters(into, strip_option)]
    pub api_key_file: Option<PathBuf>,
    /// Origins, such as `https://chat.example`, whose pages may call; `*` for all. None by default.
    pub allowed_origins: Vec<String>,
    /// Settings of connections.
    pub connections: Connections,
    /// Host names by which calls may reach the server, in addition to IP addresses and `localhost`; `None` allows any
    /// name. `pagoda serve` sets an empty list by default at a loopback address, because any site can let its name
    /// resolve to that address.
    pub allowed_hosts: Option<Vec<String>>,
    /// Maximum number of bytes of a request's body.
    pub max_body_bytes: usize,
    /// Maximum number of bytes of all bodies that are being read or prepared; a call beyond it gets a 503.
    pub max_held_bytes: usize,
    /// Time that a body may take to arrive.
    pub body_timeout: Duration,
    /// Time that a request may take from its submission to its last token; `None` for no limit.
    pub request_timeout: Option<Duration>,
    /// Time that requests have to end once the server is told to stop.
    pub drain_timeout: Duration,
    /// Publishers of the events of the KV cache, each of which must [follow](KvPublisher::follow) an engine; none by default.
    #[cfg(feature = "kv-events")]
    pub kv_events: Vec<KvPublisher>,
    /// Collector that gets the spans of calls; none by default.
    #[cfg(feature = "otel")]
    #[setters(strip_option)]
    pub traces: Option<Traces>,
    /// Names of the metrics.
    pub metrics_names: MetricsNames,
    /// Time without a token after which a stream gets a comment, so that proxies keep it open.
    pub keep_alive: Duration,
    /// Seed of the first request without a seed of its own. Each later request without a seed gets the next number.
    /// `None` draws a random seed for each.
    #[setters(into)]
    pub seed: Option<u64>,
}

impl Options {
    /// Serves `model` under `model_name` with default settings. A body has up to 64 bytes per token of the context, or 4
    /// MiB if this is more, and must arrive within 60 seconds; up to 16 bodies of this size are held at a time. Draining
    /// takes up to 30 seconds. Streams get a comment after 10 seconds without a token.
    #[must_use]
    pub fn new(model: Arc<Model>, model_name: impl Into<String>) -> Self {
        let context_length = model.config.context_length;
        let context = usize::try_from(context_length).unwrap_or(usize::MAX);
        let max_body_bytes = context.saturating_mul(BODY_BYTES_PER_TOKEN).max(BODY_BYTES_MIN);
        Self {
            max_body_bytes,
            max_held_bytes: max_body_bytes.saturating_mul(HELD_BODIES),
            context_length,
            model,
            api_keys: Vec::new(),
            api_key_file: None,
            allowed_origins: Vec::new(),
            connections: Connections::default(),
            allowed_hosts: None,
            model_name: model_name.into(),
            model_aliases: Vec::new(),
            strict_model: false,
            strict: false,
            body_timeout: Duration::from_secs(60),
            request_timeout: None,
            drain_timeout: Duration::from_secs(30),
            #[cfg(feature = "kv-events")]
            kv_events: Vec::new(),
            #[cfg(feature = "otel")]
            traces: None,
            metrics_names: MetricsNames::default(),
            keep_alive: Duration::from_secs(10),
            seed: None,
        }
    }

    /// Publishers of KV events: one for each engine, or none.
    pub(crate) fn kv_event_sources(&self) -> Vec<KvEventSource> {
        #[cfg(feature = "kv-events")]
        {
            self.kv_events.iter().map(|publisher| publisher.source().clone()).collect()
        }
        #[cfg(not(feature = "kv-events"))]
        {
            Vec::new()
        }
    }
}
