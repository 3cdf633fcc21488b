//! Flags of `cargo xtask bench serve`.

use clap::Args;

use super::values;
use crate::bench::serve::{PromptForm, Slo};

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
}
