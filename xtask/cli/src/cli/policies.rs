//! Flags of `pagoda bench policies`.

use std::path::PathBuf;

use clap::Args;

use super::EngineArgs;

/// `pagoda bench policies`.
#[derive(Debug, Clone, Args)]
pub struct BenchPoliciesArgs {
    /// Plan instead of the built-in one: a RON file with policies, in place of --sparse, lengths and KV types
    #[arg(long, value_name = "FILE.ron")]
    pub plan: Option<PathBuf>,

    /// UTF-8 text whose likelihood is measured; by default the first book of Newton's Opticks
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,

    /// Page to write; by default, and without this flag, report.html, in --out if that is given. What is measured is kept in a
    /// file beside it, from which an interrupted run is resumed
    #[arg(long, value_name = "FILE.html", num_args = 0..=1)]
    pub report: Option<Option<PathBuf>>,

    /// Folder of the page
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print one JSON object per row instead of a table
    #[arg(long)]
    pub json: bool,

    /// The engine to measure.
    #[command(flatten)]
    pub engine: EngineArgs,
}
