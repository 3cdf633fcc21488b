//! Traces: a span of each call, sent to a collector of OpenTelemetry.
//!
//! The names of the attributes are those of the conventions for generative AI that vLLM uses too.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, Method, StatusCode};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use pagoda::{Finished, Request};
use tracing::warn;

/// Name of the service, unless `OTEL_SERVICE_NAME` states one.
const SERVICE: &str = "pagoda";

/// Name of the spans.
const SPAN: &str = "llm_request";

/// Sends a span of each call to a collector, in batches and on a thread of its own. The variables `OTEL_*` set headers, time
/// limits, the sampler and attributes of the service.
#[derive(Debug, Clone)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends spans to `endpoint`, such as `http://localhost:4318/v1/traces`, as protobuf over HTTP. The collector need not be
    /// there: what cannot be sent is dropped, and the log says so.
    ///
    /// # Errors
    /// If the endpoint is no URL.
    pub fn to(endpoint: &str) -> Result<Self, TracesError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()
            .map_err(|source| TracesError { endpoint: endpoint.to_owned(), source })?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        Ok(Self(
            SdkTracerProvider::builder()
                .with_resource(resource.build())
                .with_batch_exporter(exporter)
                .build(),
        ))
    }

    /// Sends the remaining spans and ends the export. Blocks for some seconds at most. [`run`](crate::run) calls this at
    /// its end.
    pub fn finish(&self) {
        if let Err(error) = self.0.shutdown() {
            warn!(%error, "the last traces were not sent");
        }
    }
}

/// Why traces cannot be sent to an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("traces to {endpoint}: {source}")]
pub struct TracesError {
    endpoint: String,
    source: ExporterBuildError,
}

/// The begin of a call whose span is sent at its end.
#[derive(Debug, Clone)]
pub(crate) struct Begun {
    traces: Traces,
    at: SystemTime,
    /// The span of the caller, by the header `traceparent`.
    parent: Context,
    model: String,
}

impl Begun {
    /// Notes that a call of `model` with these headers begins now.
    pub(crate) fn now(traces: &Traces, model: &str, headers: &HeaderMap) -> Self {
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        Self { traces: traces.clone(), at: SystemTime::now(), parent, model: model.to_owned() }
    }
}

/// A call at its end.
pub(crate) struct Ended<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) status: StatusCode,
    pub(crate) refused: Option<&'a str>,
    /// Tokens of the prompts, those of them that were cached, and those of the answers.
    pub(crate) tokens: [u64; 3],
    pub(crate) work: &'a Work,
}

/// The work of the engine for a call.
#[derive(Debug, Default)]
pub(crate) struct Work(Mutex<Done>);

#[derive(Debug, Default, Clone)]
struct Done {
    asked: Option<Asked>,
    sequences: i64,
    queue: Option<Duration>,
    first_token: Option<Duration>,
    prefill: Option<Duration>,
    decode: Option<Duration>,
}

/// Parameters that the first request of a call states.
#[derive(Debug, Clone, Copy)]
struct Asked {
    max_tokens: u32,
    samples: u32,
    temperature: f32,
    top_p: f32,
}

impl Work {
    /// Notes a request that was submitted.
    pub(crate) fn submitted(&self, request: &Request) {
        let sampling = &request.sampling;
        self.lock().asked.get_or_insert(Asked {
            max_tokens: request.max_tokens,
            samples: request.samples,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
        });
    }

    /// Notes the end of a sequence. If a call has several, each time is the longest one, but the time to the first token
    /// is the shortest one.
    pub(crate) fn finished(&self, end: &Finished) {
        let clock = end.usage.clock;
        let mut done = self.lock();
        done.sequences += 1;
        done.queue = done.queue.max(clock.queue());
        done.prefill = done.prefill.max(clock.prefill());
        done.decode = done.decode.max(clock.decode());
        done.first_token = done.first_token.into_iter().chain(clock.to_first_token()).min();
    }

    fn lock(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ended<'_> {
    /// Sends the span of the call.
    pub(crate) fn send(&self, begun: &Begun) {
        let Begun { traces, at, parent, model } = begun;
        let tracer = traces.0.tracer(env!("CARGO_PKG_NAME"));
        let whole = at.elapsed().unwrap_or_default();
        let attributes = self.attributes(model, whole);
        let builder = tracer.span_builder(SPAN).with_kind(SpanKind::Server).with_start_time(*at);
        let mut span = builder.with_attributes(attributes).start_with_context(&tracer, parent);
        if self.status.is_server_error() {
            span.set_status(Status::error(self.refused.unwrap_or_default().to_owned()));
        }
        span.end_with_timestamp(*at + whole);
    }

    fn attributes(&self, model: &str, whole: Duration) -> Vec<KeyValue> {
        let Self { id, method, path, status, tokens: [prompt, cached, output], work, .. } = *self;
        let int = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let mut attributes = vec![
            KeyValue::new("gen_ai.request.id", id.to_owned()),
            KeyValue::new("gen_ai.response.model", model.to_owned()),
            KeyValue::new("http.request.method", method.to_string()),
            KeyValue::new("url.path", path.to_owned()),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
            KeyValue::new("gen_ai.latency.e2e", whole.as_secs_f64()),
        ];
        let done = work.lock().clone();
        if let Some(Asked { max_tokens, samples, temperature, top_p }) = done.asked {
            attributes.extend([
                KeyValue::new("gen_ai.request.max_tokens", i64::from(max_tokens)),
                KeyValue::new("gen_ai.request.n", i64::from(samples)),
                KeyValue::new("gen_ai.request.temperature", f64::from(temperature)),
                KeyValue::new("gen_ai.request.top_p", f64::from(top_p)),
                KeyValue::new("gen_ai.usage.prompt_tokens", int(prompt)),
                KeyValue::new("gen_ai.usage.cached_tokens", int(cached)),
                KeyValue::new("gen_ai.usage.completion_tokens", int(output)),
                KeyValue::new("gen_ai.usage.num_sequences", done.sequences),
            ]);
        }
        let times = [
            ("gen_ai.latency.time_in_queue", done.queue),
            ("gen_ai.latency.time_to_first_token", done.first_token),
            ("gen_ai.latency.time_in_model_prefill", done.prefill),
            ("gen_ai.latency.time_in_model_decode", done.decode),
        ];
        let seconds =
            |(name, time): (&'static str, Option<Duration>)| Some(KeyValue::new(name, time?.as_secs_f64()));
        attributes.extend(times.into_iter().filter_map(seconds));
        attributes
    }
}
