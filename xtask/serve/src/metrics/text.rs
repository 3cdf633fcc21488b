//! The page of metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use pagoda::usage::ReadAhead;
use pagoda::{EngineHandle, Snapshot};

use super::histogram::Counted;
use super::{Histogram, Metrics, MetricsNames};
use crate::server::{Server, waiting};

/// `GET /metrics`.
pub(crate) async fn respond(State(server): State<Arc<Server>>) -> Response {
    let text = page(&server);
    let mut response = Response::new(Body::from(text));
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}

fn page(server: &Server) -> String {
    let Server { engines, metrics, options, .. } = server;
    let (names, model) = (options.metrics_names, &options.model_name);
    let mut page = Page { names, model, engine: 0, families: Vec::new() };
    for (index, engine) in engines.engines().iter().enumerate() {
        let (waiting, snapshot) = waiting(engine);
        page.engine = index;
        requests(&mut page, &snapshot, waiting);
        cache(&mut page, &snapshot);
        tiers(&mut page, &snapshot);
        faults(&mut page, &snapshot, engine);
    }
    // What the server counts itself has the label of the first engine, as every series has one.
    page.engine = 0;
    refusals(&mut page, metrics);
    times(&mut page, metrics);
    sparse(&mut page, metrics);
    page.text()
}

#[expect(clippy::cast_precision_loss, reason = "counts for people and plots")]
fn requests(page: &mut Page<'_>, snapshot: &Snapshot, waiting: usize) {
    let totals = &snapshot.totals;
    let (running, waiting) = (snapshot.running.len() as f64, waiting as f64);
    page.gauge("num_requests_running", "Sequences that run.", &[("", running)]);
    page.gauge(
        "num_requests_waiting",
        "Requests that wait for their start, and preempted sequences.",
        &[("", waiting)],
    );
    page.counter(
        "request_success_total",
        "Sequences that ended, by the reason.",
        &[
            (r#"finished_reason="stop""#, totals.stopped),
            (r#"finished_reason="length""#, totals.length),
            (r#"finished_reason="abort""#, totals.aborted),
            (r#"finished_reason="error""#, totals.failed),
        ],
    );
    page.counter("num_preemptions_total", "Preemptions.", &[("", totals.preemptions)]);
    page.counter("generation_tokens_total", "Tokens generated.", &[("", totals.generated_tokens)]);
    let cached = totals.cached.total();
    let prompts = totals.prefill_tokens + cached;
    page.counter("prompt_tokens_total", "Prompt tokens, computed or cached.", &[("", prompts)]);
    page.counter("prompt_tokens_cached_total", "Prompt tokens that were not computed.", &[("", cached)]);
    page.own_counter("steps_total", "Steps of the engine.", &[("", totals.steps)]);
    let streamed = [("", totals.streamed_weight_bytes)];
    page.own_counter("weight_streamed_bytes_total", "Bytes of weights brought from host memory.", &streamed);
    let rates =
        [(r#"phase="prefill""#, snapshot.prefill_tok_s), (r#"phase="decode""#, snapshot.decode_tok_s)];
    page.own_gauge("tokens_per_second", "Tokens a second, over the last seconds.", &rates);
}

fn refusals(page: &mut Page<'_>, metrics: &Metrics) {
    let [rejected, limited] =
        [&metrics.rejected, &metrics.limited].map(|count| count.load(Ordering::Relaxed));
    page.counter(
        "admission_rejections_total",
        "Calls refused with a 503, or with a 429 because of the limits of their API keys.",
        &[(r#"reason="queue""#, rejected), (r#"reason="rate_limit""#, limited)],
    );
}

fn cache(page: &mut Page<'_>, snapshot: &Snapshot) {
    let blocks = &snapshot.blocks;
    let share = if blocks.total == 0 { 0.0 } else { f64::from(blocks.used) / f64::from(blocks.total) };
    page.gauge("kv_cache_usage_perc", "Share of the KV blocks that sequences hold, 0 to 1.", &[("", share)]);
    let config = format!(r#"block_size="{}",num_gpu_blocks="{}""#, blocks.block_size, blocks.total);
    page.gauge("cache_config_info", "Sizes of the KV cache.", &[(config.as_str(), 1.0)]);
    let prefix = &snapshot.prefix;
    page.counter(
        "prefix_cache_queries_total",
        "Tokens looked up in the prefix cache.",
        &[("", prefix.queried_tokens)],
    );
    page.counter("prefix_cache_hits_total", "Tokens found there.", &[("", prefix.hit_tokens)]);
    // vLLM has given these names up; the router of its production stack reads them.
    if page.names != MetricsNames::Pagoda {
        let counts = [("queries", prefix.queried_tokens), ("hits", prefix.hit_tokens)];
        page.family("vllm:gpu_cache_usage_perc", "The same as kv_cache_usage_perc.", "gauge", &[("", share)]);
        for (name, count) in counts {
            let help = format!("The same as prefix_cache_{name}_total.");
            page.family(&format!("vllm:gpu_prefix_cache_{name}_total"), &help, "counter", &[("", count)]);
        }
    }
    let cached = &snapshot.totals.cached;
    let counts = [
        (r#"source="device""#, cached.device),
        (r#"source="host""#, cached.host),
        (r#"source="disk""#, cached.disk),
        (r#"source="remote""#, cached.remote),
    ];
    page.counter(
        "prompt_tokens_cached_by_source_total",
        "Cached prompt tokens, by the tier that had them.",
        &counts,
    );
    let kinds = [
        (r#"kind="total""#, f64::from(blocks.total)),
        (r#"kind="used""#, f64::from(blocks.used)),
        (r#"kind="shared""#, f64::from(blocks.shared)),
        (r#"kind="cached""#, f64::from(blocks.cached)),
    ];
    page.own_gauge("kv_blocks", "KV blocks of the pool.", &kinds);
}

/// Writes the metrics of steps that take too long, and of devices that were lost.
fn faults(page: &mut Page<'_>, snapshot: &Snapshot, handle: &EngineHandle) {
    let time = handle.step_time().unwrap_or_default().as_secs_f64();
    page.own_gauge("step_seconds", "Time since the begin of the step that runs, 0 for none.", &[("", time)]);
    page.own_counter(
        "step_stalls_total",
        "Steps that took longer than the limit.",
        &[("", handle.num_stalls())],
    );
    let recoveries = snapshot.totals.recoveries;
    page.own_counter("device_recoveries_total", "Lost devices that a new one replaced.", &[("", recoveries)]);
}

fn times(page: &mut Page<'_>, metrics: &Metrics) {
    let all: [(&str, &str, &Histogram); 9] = [
        (
            "time_to_first_token_seconds",
            "From the submission to the first token.",
            &metrics.time_to_first_token,
        ),
        ("inter_token_latency_seconds", "Between two tokens of a sequence.", &metrics.inter_token_latency),
        (
            "request_time_per_output_token_seconds",
            "Per token after the first.",
            &metrics.time_per_output_token,
        ),
        ("e2e_request_latency_seconds", "From the submission to the last token.", &metrics.e2e_latency),
        ("request_queue_time_seconds", "From the submission to the start.", &metrics.queue_time),
        ("request_prefill_time_seconds", "From the start to the first token.", &metrics.prefill_time),
        ("request_decode_time_seconds", "From the first token to the last.", &metrics.decode_time),
        ("request_prompt_tokens", "Tokens of a prompt.", &metrics.prompt_tokens),
        ("request_generation_tokens", "Tokens of an output.", &metrics.generation_tokens),
    ];
    let prefixes = page.prefixes();
    for (name, help, histogram) in all {
        page.histogram(prefixes, name, help, &histogram.counted());
    }
}

/// Writes the density and the certified mass of sparse attention, once sparse attention has served a sequence.
fn sparse(page: &mut Page<'_>, metrics: &Metrics) {
    let all = [
        (
            "request_sparse_density",
            "Share of the KV blocks that sparse attention read.",
            &metrics.sparse_density,
        ),
        ("request_sparse_bound", "Attention mass that the policy certified.", &metrics.sparse_bound),
    ];
    for (name, help, histogram) in all {
        let counted = histogram.counted();
        if counted.count() > 0 {
            page.histogram(&["pagoda:"], name, help, &counted);
        }
    }
}

fn tiers(page: &mut Page<'_>, snapshot: &Snapshot) {
    let of = [("prefix", snapshot.tiers.ahead), ("selection", snapshot.selected_ahead)];
    let read = of.into_iter().filter_map(|(name, read)| Some((name, read?)));
    let values = read.flat_map(|(name, ReadAhead { predicted, used, late })| {
        let label = |kind: &str| format!(r#"of="{name}",kind="{kind}""#);
        [("predicted", predicted), ("used", used), ("late", late)].map(|(kind, n)| (label(kind), n))
    });
    let values: Vec<(String, u64)> = values.collect();
    let values: Vec<_> = values.iter().map(|(label, count)| (label.as_str(), *count)).collect();
    page.own_counter("read_ahead_blocks_total", "Blocks read before they were needed.", &values);
    let tiers =
        [("host", snapshot.tiers.host), ("disk", snapshot.tiers.disk), ("remote", snapshot.tiers.remote)];
    let open: Vec<_> =
        tiers.into_iter().filter_map(|(name, tier)| Some((format!(r#"tier="{name}""#), tier?))).collect();
    type Count = fn(&pagoda::usage::TierTraffic) -> u64;
    let counts: [(&str, &str, Count); 5] = [
        ("tier_hits_total", "Blocks read from a KV tier.", |tier| tier.hits),
        ("tier_misses_total", "Blocks that a KV tier did not have.", |tier| tier.misses),
        ("tier_errors_total", "Reads, writes and lookups that failed.", |tier| tier.errors),
        ("tier_read_bytes_total", "Bytes read from a KV tier.", |tier| tier.bytes_read),
        ("tier_written_bytes_total", "Bytes written to a KV tier.", |tier| tier.bytes_written),
    ];
    for (name, help, count) in counts {
        let values: Vec<_> = open.iter().map(|(label, tier)| (label.as_str(), count(tier))).collect();
        page.own_counter(name, help, &values);
    }
}

/// The text of a metrics page.
struct Page<'a> {
    names: MetricsNames,
    model: &'a str,
    /// Number of the engine whose samples are written next, as a label.
    engine: usize,
    /// Metric families in their order, each with its name and its lines. The samples of all engines follow the one head
    /// of their family.
    families: Vec<(String, String)>,
}

impl Page<'_> {
    /// A gauge that vLLM has too. Each value has labels.
    fn gauge(&mut self, name: &str, help: &str, values: &[(&str, f64)]) {
        self.prefixes()
            .iter()
            .for_each(|prefix| self.family(&format!("{prefix}{name}"), help, "gauge", values));
    }

    fn own_gauge(&mut self, name: &str, help: &str, values: &[(&str, f64)]) {
        self.family(&format!("pagoda:{name}"), help, "gauge", values);
    }

    /// A counter that vLLM has too.
    fn counter(&mut self, name: &str, help: &str, values: &[(&str, u64)]) {
        self.prefixes()
            .iter()
            .for_each(|prefix| self.family(&format!("{prefix}{name}"), help, "counter", values));
    }

    fn own_counter(&mut self, name: &str, help: &str, values: &[(&str, u64)]) {
        self.family(&format!("pagoda:{name}"), help, "counter", values);
    }

    fn prefixes(&self) -> &'static [&'static str] {
        match self.names {
            MetricsNames::Pagoda => &["pagoda:"],
            MetricsNames::Vllm => &["vllm:"],
            MetricsNames::Both => &["pagoda:", "vllm:"],
        }
    }

    fn family<V: std::fmt::Display>(&mut self, name: &str, help: &str, kind: &str, values: &[(&str, V)]) {
        if values.is_empty() {
            return;
        }
        let samples: String = values.iter().map(|(labels, value)| self.sample(name, labels, value)).collect();
        self.add(name, help, kind, &samples);
    }

    fn histogram(&mut self, prefixes: &[&str], name: &str, help: &str, counted: &Counted) {
        for prefix in prefixes {
            let name = format!("{prefix}{name}");
            let bucket = |(bound, count): &(f64, u64)| {
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                self.sample(&format!("{name}_bucket"), &format!(r#"le="{bound}""#), count)
            };
            let mut samples: String = counted.buckets.iter().map(bucket).collect();
            samples += &self.sample(&format!("{name}_sum"), "", counted.sum);
            samples += &self.sample(&format!("{name}_count"), "", counted.count());
            self.add(&name, help, "histogram", &samples);
        }
    }

    /// Adds samples to their family. A new family begins with its head.
    fn add(&mut self, name: &str, help: &str, kind: &str, samples: &str) {
        let family = self.families.iter_mut().find(|(family, _)| family == name);
        match family {
            Some((_, lines)) => *lines += samples,
            None => {
                let lines = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
                self.families.push((name.to_owned(), lines));
            }
        }
    }

    fn sample(&self, name: &str, labels: &str, value: impl std::fmt::Display) -> String {
        let model = self.model.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let comma = if labels.is_empty() { "" } else { "," };
        format!("{name}{{model_name=\"{model}\",engine=\"{}\"{comma}{labels}}} {value}\n", self.engine)
    }

    fn text(self) -> String {
        self.families.into_iter().map(|(_, lines)| lines).collect()
    }
}
