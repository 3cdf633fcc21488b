//! Flags of `pagoda serve`.

use std::path::PathBuf;

use clap::{Args, Parser};
use pagoda::{Preemption, UnknownName};
use serve::MetricsNames;
use strum::{Display, EnumString, VariantNames};

use super::{EngineArgs, values};

/// Form of the server's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
pub enum LogForm {
    /// A line an event.
    #[default]
    Text,
    /// A JSON object an event.
    Json,
    /// None.
    Off,
}

/// `pagoda serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address or name to listen at, such as localhost; 0.0.0.0 for all of the machine's
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = values::non_empty)]
    pub host: String,

    /// Port to listen at; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 8080, allow_negative_numbers = true)]
    pub port: u16,

    /// Names by which calls may reach the server, in addition to IP addresses and localhost, separated by commas; by default any
    /// name, or none at a loopback address
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub allowed_hosts: Option<Vec<String>>,

    /// Listen at this Unix socket in place of an address and a port
    #[cfg(unix)]
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,

    /// Certificates for HTTPS, in PEM, the server's first; read again at SIGHUP
    #[cfg(feature = "tls")]
    #[arg(long, alias = "ssl-certfile", alias = "ssl-cert-file", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Key of the server's certificate, in PEM
    #[cfg(feature = "tls")]
    #[arg(long, alias = "ssl-keyfile", alias = "ssl-key-file", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Origins, with scheme and host, whose pages may call, separated by commas; * for all
    #[arg(long, value_name = "ORIGINS", value_delimiter = ',')]
    pub allowed_origins: Vec<String>,

    /// File with one API key a line, and after it, if wanted, admin, name=NAME, share-prefixes, requests-per-minute=N and
    /// tokens-per-minute=N; read again at SIGHUP. By default, no key is asked for
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Names of the model, separated by commas, the first of which replies have; by default, that of its file or folder
    #[arg(long, alias = "served-model-name", alias = "alias", value_name = "NAMES", value_delimiter = ',')]
    #[arg(value_parser = values::non_empty)]
    pub model_name: Vec<String>,

    /// Refuse calls for models of other names; by default, the one model answers all
    #[arg(long)]
    pub strict_model: bool,

    /// Refuse fields that change nothing; by default, the reply names them
    #[arg(long)]
    pub strict: bool,

    /// Form of the log on standard error: text, json, or off. The variable RUST_LOG filters it
    #[arg(long, value_name = "FORM", default_value_t = LogForm::Text, value_parser = values::named::<LogForm>())]
    pub log: LogForm,

    /// File that is there while calls are taken; it has the server's address
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,

    /// Maximum number of sequences that run at a time
    #[arg(long, value_name = "N", default_value_t = pagoda::MAX_SEQUENCES)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=pagoda::MAX_SEQUENCES as i64))]
    #[arg(allow_negative_numbers = true)]
    pub max_sequences: u32,

    /// Maximum number of tokens of prompt and answer together; by default the model's context length
    #[arg(long, short, alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub context: Option<u32>,

    /// Maximum number of requests that wait for their start; further ones get a 503
    #[arg(long, value_name = "N", default_value_t = 1024, allow_negative_numbers = true)]
    pub max_queued_requests: usize,

    /// Maximum number of prompt tokens of requests that wait; further ones get a 503
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    #[arg(allow_negative_numbers = true)]
    pub max_queued_tokens: u64,

    /// Seed of the first request that names none, from which those after it count on; by default a random one each
    #[arg(long, value_name = "N", value_parser = values::seed)]
    pub seed: Option<u64>,

    /// Seconds that requests have to end after SIGTERM or Ctrl-C; a second signal ends the server at once
    #[arg(long, value_name = "S", default_value_t = 30, allow_negative_numbers = true)]
    pub drain_timeout: u64,

    /// Seconds that a step of the engine may take before it is reported and the server is not ready
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub max_step_time: u64,

    /// Factor by which each waiting prompt may lengthen the time between tokens of others; inf for any
    #[arg(long, value_name = "F", default_value_t = 2.0, value_parser = values::above_one)]
    #[arg(allow_negative_numbers = true)]
    pub max_slowdown: f64,

    /// Seconds that a request may take, its time in the queue included; by default any
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub request_timeout: Option<u64>,

    /// Keep no KV blocks on disk; by default, 10 GiB of them, or what fits on the disk, outlive the server in the
    /// user's cache folder, unless --kv-tiers says where
    #[arg(long)]
    pub no_disk_kv: bool,

    /// Publish the changes of the KV cache at this endpoint of ZeroMQ, such as tcp://127.0.0.1:5557, as vLLM does for
    /// routers that look for prefixes
    #[cfg(feature = "kv-events")]
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_events: Option<String>,

    /// Send changes of the KV cache again, to who asks this endpoint of ZeroMQ, such as tcp://127.0.0.1:5558
    #[cfg(feature = "kv-events")]
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    pub kv_events_replay: Option<String>,

    /// Begin every message about the KV cache with this topic; llm-d asks for kv@ADDRESS@MODEL
    #[cfg(feature = "kv-events")]
    #[arg(long, value_name = "TEXT", requires = "kv_events", default_value = "", hide_default_value = true)]
    pub kv_events_topic: String,

    /// Send a span of each call to this collector of OpenTelemetry, as protobuf over HTTP, such as
    /// http://localhost:4318/v1/traces. Variables OTEL_* set headers, limits and the name of the service
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,

    /// Names of the metrics: pagoda's own, or those that routers know of vLLM, or both
    #[arg(long, value_name = "NAMES", default_value_t = MetricsNames::Both, value_parser = values::named::<MetricsNames>())]
    pub metrics_names: MetricsNames,

    /// Start a request only when KV blocks for its whole prompt are free, not only for its first chunk
    #[arg(long)]
    pub reserve_full_input: bool,

    /// Treatment of a preempted request, which must give up its KV blocks: recompute drops them and computes them again,
    /// swap copies them to host memory and back
    #[arg(long, value_name = "MODE", default_value_t, value_parser = values::named::<Preemption>())]
    pub preempt: Preemption,

    /// The engine to serve.
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl Default for ServeArgs {
    /// The arguments of a command line without flags.
    fn default() -> Self {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            serve: ServeArgs,
        }
        Flags::parse_from(["serve"]).serve
    }
}
