//! Flags of `pagoda score`.

use std::path::PathBuf;

use clap::Args;

use super::EngineArgs;

/// `pagoda score`.
#[derive(Debug, Clone, Args)]
pub struct ScoreArgs {
    /// JSON file with a list of token ids, or a list of such lists
    #[arg(long, value_name = "FILE.json")]
    pub ids_file: PathBuf,

    /// Print the N most likely tokens after the last position
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub top: u32,

    /// Write `logits`, float32 [min(n, last), vocab], to this file
    #[arg(long, value_name = "FILE.safetensors")]
    pub logits_out: Option<PathBuf>,

    /// Write `q`, float32 [heads, min(n, last), head_dim], and `k`, float32 [kv_heads, n, head_dim], of a layer to
    /// this file, which `select` reads. Both are as attention sees them: rotated, and `k` as the cache keeps it
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "sparse")]
    pub dump_qk: Option<PathBuf>,

    /// Layer of --dump-qk
    #[arg(long, value_name = "N", default_value_t = 0, requires = "dump_qk", allow_negative_numbers = true)]
    pub layer: u32,

    /// Number of last positions whose logits --logits-out holds, and whose queries --dump-qk; by default all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub last: Option<u32>,

    /// Feed tokens from this index on one at a time, as decode steps, so that decode policies take effect
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub decode_from: Option<u32>,

    /// Print one JSON object per sequence instead of text
    #[arg(long)]
    pub json: bool,

    /// The engine to run on.
    #[command(flatten)]
    pub engine: EngineArgs,
}
