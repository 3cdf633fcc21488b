//! Flags of `pagoda serve`.

use std::path::PathBuf;

use clap::{Args, Parser};
use pagoda::Preemption;
use serve::MetricsNames;

use super::{EngineArgs, values};

/// `pagoda serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address or name to listen at, such as localhost; 0.0.0.0 for all of the machine's
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = values::non_empty)]
    pub host: String,

    /// Port to listen at; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,

    /// Names by which calls may reach the server, in addition to IP addresses and localhost, separated by commas; by default any
    /// name, or none at a loopback address
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub allowed_hosts: Option<Vec<String>>,

    /// File with one API key a line, and behind it share-prefixes, requests-per-minute=N and tokens-per-minute=N where
    /// wanted; by default, no key is asked for
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Name of the model in requests and replies; by default, that of its file or folder
    #[arg(long, value_name = "NAME", value_parser = values::non_empty)]
    pub model_name: Option<String>,

    /// Maximum number of sequences that run at a time
    #[arg(long, value_name = "N", default_value_t = pagoda::MAX_SEQUENCES)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=pagoda::MAX_SEQUENCES as i64))]
    pub max_sequences: u32,

    /// Maximum number of tokens of prompt and answer together; by default the model's context length
    #[arg(long, short, alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,

    /// Maximum number of requests that wait for their start; further ones get a 503
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_queued_requests: usize,

    /// Maximum number of prompt tokens of requests that wait; further ones get a 503
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    pub max_queued_tokens: u64,

    /// Seed of the first request that names none, from which those after it count on; by default a random one each
    #[arg(long, value_name = "N", value_parser = values::seed)]
    pub seed: Option<u64>,

    /// Seconds that requests have to end after SIGTERM or Ctrl-C; a second signal ends the server at once
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub drain_timeout: u64,

    /// Seconds that a step of the engine may take before it is reported and the server is not ready
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_step_time: u64,

    /// Factor by which each waiting prompt may lengthen the time between tokens of others; inf for any
    #[arg(long, value_name = "F", default_value_t = 2.0, value_parser = values::above_one)]
    pub max_slowdown: f64,

    /// Seconds that a request may take, its time in the queue included; by default any
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub request_timeout: Option<u64>,

    /// Keep no KV blocks on disk; by default, 10 GiB of them, or what fits on the disk, outlive the server in the
    /// user's cache folder, unless --kv-tiers says where
    #[arg(long)]
    pub no_disk_kv: bool,

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
