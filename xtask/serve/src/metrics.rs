//! `GET /metrics`: counters, gauges and histograms in Prometheus' text format 0.0.4.
//!
//! Written here because routers that read vLLM's metrics parse this format, and the crate prometheus-client
//! writes OpenMetrics, whose counters have other names there.

mod histogram;
mod text;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use pagoda::{FinishReason, Finished, UnknownName, Usage};
use strum::{Display, EnumString, VariantNames};

pub(crate) use histogram::Histogram;
pub(crate) use text::respond;

/// Names under which metrics are published; as text `pagoda`, `vllm` or `both`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
#[non_exhaustive]
pub enum MetricsNames {
    /// `pagoda:NAME`.
    #[default]
    Pagoda,
    /// `vllm:NAME` for metrics that vLLM has too, so that routers find them; `pagoda:NAME` for others.
    Vllm,
    /// `pagoda:NAME` and, for metrics that vLLM has too, also `vllm:NAME`.
    Both,
}

const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0,
];
const TOKENS: &[f64] = &[1.0, 10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
/// Bounds of the buckets of histograms of shares. They are closer together near 0, for the share of blocks that
/// sparse attention reads, and near 1, for the mass that it certifies.
const SHARES: &[f64] =
    &[0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0];

/// Counts and times of the requests that the server has seen.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) time_per_output_token: Histogram,
    pub(crate) e2e_latency: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) decode_time: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generation_tokens: Histogram,
    /// Share of the KV blocks that sparse attention read, of sequences that it served.
    pub(crate) sparse_density: Histogram,
    /// Certified attention mass, per sequence that has a certificate.
    pub(crate) sparse_bound: Histogram,
    pub(crate) rejected: AtomicU64,
    /// Number of calls beyond the limits of their API keys.
    pub(crate) limited: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(SECONDS);
        Self {
            time_to_first_token: seconds(),
            inter_token_latency: seconds(),
            time_per_output_token: seconds(),
            e2e_latency: seconds(),
            queue_time: seconds(),
            prefill_time: seconds(),
            decode_time: seconds(),
            prompt_tokens: Histogram::new(TOKENS),
            generation_tokens: Histogram::new(TOKENS),
            sparse_density: Histogram::new(SHARES),
            sparse_bound: Histogram::new(SHARES),
            rejected: AtomicU64::new(0),
            limited: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts the time between a token and the previous token of the same sequence.
    pub(crate) fn token_after(&self, time: Duration) {
        self.inter_token_latency.add(time.as_secs_f64());
    }

    /// Counts the end of a sequence.
    pub(crate) fn finished(&self, end: &Finished) {
        if matches!(end.reason, FinishReason::Cancelled) {
            return;
        }
        let Usage { prompt_tokens, generated_tokens, clock, sparse, .. } = &end.usage;
        let whole = clock.last.map(|last| last - clock.submitted);
        let after_first = clock.decode().filter(|_| *generated_tokens > 1);
        for (histogram, time) in [
            (&self.queue_time, clock.queue()),
            (&self.time_to_first_token, clock.to_first_token()),
            (&self.prefill_time, clock.prefill()),
            (&self.decode_time, clock.decode()),
            (&self.e2e_latency, whole),
            (&self.time_per_output_token, after_first.map(|time| time / (generated_tokens - 1))),
        ] {
            time.into_iter().for_each(|time| histogram.add(time.as_secs_f64()));
        }
        self.prompt_tokens.add((*prompt_tokens).into());
        self.generation_tokens.add((*generated_tokens).into());
        if sparse.policy != "full" {
            self.sparse_density.add(sparse.density);
            sparse.bound.into_iter().for_each(|bound| self.sparse_bound.add(bound));
        }
    }
}
