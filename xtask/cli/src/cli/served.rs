//! Flags of `pagoda bench serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{EngineArgs, Slo, values};

/// Form of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptForm {
    /// Token ids to `/completions`.
    Ids,
    /// Common words to `/completions`.
    #[default]
    Text,
    /// Common words as messages to `/chat/completions`.
    Chat,
}

/// Load of `bench serve`: the server, and the requests that it gets.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Suite serve")]
pub struct ServedArgs {
    /// Base address of a server with OpenAI's API, such as http://127.0.0.1:8080/v1; by default, `serve` is started in
    /// this process
    #[arg(long, value_name = "URL", value_parser = values::url)]
    pub url: Option<String>,

    /// Environment variable with the API key of --url
    #[arg(long, value_name = "NAME", requires = "url")]
    pub api_key_env: Option<String>,

    /// Form of the prompts: token ids or words to /completions, or words to /chat/completions; by default words, and ids
    /// where the model has no tokenizer
    #[arg(long, value_name = "FORM")]
    pub form: Option<PromptForm>,

    /// Limits that a good answer keeps, such as ttft=500ms,itl=50ms,e2e=10s: first token, mean time between tokens, last
    /// token
    #[arg(long, value_name = "LIMITS")]
    pub slo: Option<Slo>,

    /// Repeat each workload with Poisson arrivals of these rates a second
    #[arg(long, value_name = "R,R,..", value_delimiter = ',', value_parser = values::rate)]
    pub rates: Vec<f64>,

    /// Seed that is added to those of the workloads: each has other arrivals, lengths and prompts
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::seed)]
    pub seed: u64,

    /// Lose the device of an engine of the command's own server, so many seconds after each load began, such as 0@2.5
    #[arg(long, value_name = "ENGINE@SECONDS", conflicts_with = "url")]
    pub lose: Option<Loss>,
}

/// `pagoda bench serve`.
#[derive(Debug, Clone, Args)]
pub struct BenchServeArgs {
    /// Send this workload instead of the built-in ones (RON, see xtask/cli/workloads); may be repeated
    #[arg(long, value_name = "FILE.ron")]
    pub workload: Vec<PathBuf>,

    /// Plan of a restart, which kills the server and starts it again: a RON file, or restart for the built-in one
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<PathBuf>,

    /// Write results and a page that draws them into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print one JSON object per row instead of tables
    #[arg(long)]
    pub json: bool,

    /// The load.
    #[command(flatten)]
    pub served: ServedArgs,

    /// The engine of the server.
    #[command(flatten)]
    pub engine: EngineArgs,

    /// The flags that `engine` was read from, for servers that are started with it.
    #[arg(skip)]
    pub engine_flags: Vec<OsString>,
}

/// A device that is lost under load, written `ENGINE@SECONDS`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Number of the engine.
    pub engine: usize,
    /// Time since the load began.
    pub after: Duration,
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not ENGINE@SECONDS, such as 0@2.5");
        let (engine, seconds) = text.split_once('@').ok_or_else(wrong)?;
        let after = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Ok(Self { engine: engine.parse().map_err(|_| wrong())?, after: after.ok_or_else(wrong)? })
    }
}
