//! The command line: every subcommand and flag, and the checks that refuse a bad value before anything runs.
//!
//! Results go to stdout (with `--json`, exactly one JSON object per line), everything else to stderr. Exit
//! codes: 0 success, 1 failure, 2 wrong usage.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use pagoda::{Registry, Sparse};
use pagoda_cli::cli::{self, Shared, Sources, values as shared};

mod kernels;
mod values;

pub use kernels::KernelsArgs;
pub use pagoda_cli::cli::{
    BenchPoliciesArgs, BenchServeArgs, EngineArgs, GenerateArgs, ServedArgs, SparseArg,
};
pub(crate) use shared::memory;

/// `cargo xtask`: one subcommand and its flags.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about,
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Subcommand to run.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the arguments of this process; wrong usage ends it with exit code 2. `--sparse` names policies of
    /// `registry`.
    #[must_use]
    pub fn read(registry: &Registry) -> Self {
        let args = keep_separator(std::env::args_os().collect());
        Self::parse_with(registry, args, &Sources::of_this_process()).unwrap_or_else(|error| error.exit())
    }

    /// Reads `args`, whose first element names the program.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn try_parse_with(
        registry: &Registry,
        args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        Self::parse_with(registry, args.into_iter().map(Into::into).collect(), &Sources::default())
    }

    /// Reads `args`, filled up from the environment and a file.
    fn parse_with(registry: &Registry, args: Vec<OsString>, sources: &Sources) -> Result<Self, clap::Error> {
        let policy = {
            let registry = registry.clone();
            move |text: &str| shared::policy_of(&registry, text)
        };
        let select = |command: clap::Command| command.mut_arg("sparse", |arg| arg.value_parser(policy));
        let command = cli::with_policies(Self::command(), registry).mut_subcommand("select", select);
        let greedy = |arg: clap::Arg| arg.help(TEMPERATURE);
        let mut command = cli::sources::with_sources(command)
            .mut_subcommand("generate", |generate| generate.mut_arg("temperature", greedy));
        let matches = cli::sources::parse(&command, &args, sources)?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let (Command::Bench(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
            args.engine_flags = EngineArgs::given(matches);
        }
        Ok(cli)
    }
}

/// Help of the temperature of `generate`, in place of that of `pagoda run`.
const TEMPERATURE: &str = "Divides the logits; by default 0, which always takes the most likely token: scripts rely on the same tokens in each run";

/// Keeps the first `--` of `test`'s arguments, which is for cargo: clap drops one `--`, so this adds another.
fn keep_separator(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.len() > 2 && args[1] == "test" && args[2] != "--help" && args[2] != "-h" {
        args.insert(2, "--".into());
    }
    args
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text from prompts; several prompts are served as one continuous batch
    #[command(alias = "run")]
    Generate(Box<GenerateArgs>),
    /// A command that `pagoda` has too.
    #[command(flatten)]
    Shared(Shared),
    /// Run one sparse-attention policy on q and k tensors and print the blocks it selects
    Select(SelectArgs),
    /// List the GPU kernels and their levels, write them out as WGSL, MSL, HLSL and SPIR-V, or run their tests in a browser
    Kernels(KernelsArgs),
    /// Compile the kernels for devices that are not here, with the compilers of their drivers, and hold registers to bounds
    Portability(PortabilityArgs),
    /// Compile for `portability`, in a process of its own
    #[command(hide = true)]
    PortabilityWorker(PortabilityWorkerArgs),
    /// Compare the tables and pictures of the documentation with the results in docs/results, or write them
    Pages(PagesArgs),
    /// Measure kernels, policies, whole requests or a server
    Bench(Box<BenchArgs>),
    /// Set the machine up, fetch the default model and run every test
    Test(TestArgs),
    /// Run everything that must hold before a change lands: format, lints, docs, tests
    Ci(CiArgs),
}

/// `cargo xtask ci`.
#[derive(Debug, Clone, Args)]
pub struct CiArgs {
    /// Check each crate with each set of features that its users may choose, and nothing else
    #[arg(long)]
    pub alone: bool,

    /// Leave out lints and documentation of the whole workspace: `.ci/lint` and `.ci/doc` check them as cargo compiles
    #[arg(long, conflicts_with = "alone")]
    pub linted: bool,
}

/// `cargo xtask select`.
#[derive(Debug, Clone, Args)]
pub struct SelectArgs {
    /// Sparse-attention policy: NAME, NAME:key=value,key=value or a preset, FILE.ron
    #[arg(long, value_name = "SPEC", value_parser = shared::no_policy)]
    pub sparse: Sparse,

    /// File with q, f32 [heads, q_len, head_dim], and k, f32 [kv_heads, k_len, head_dim]
    #[arg(long, value_name = "FILE.safetensors")]
    pub tensors: PathBuf,

    /// Print one JSON object instead of a drawing
    #[arg(long)]
    pub json: bool,
}

/// `cargo xtask portability`.
#[derive(Debug, Clone, Default, Args)]
pub struct PortabilityArgs {
    /// Device to compile for, as docs/portability.md names it; may be repeated, by default all
    #[arg(long, value_name = "ID")]
    pub device: Vec<String>,

    /// Compile one variant of each kernel and level for one device, and run the checkers, as CI does
    #[arg(long, conflicts_with = "device")]
    pub quick: bool,

    /// Compile only the kernels whose name contains this text
    #[arg(long, value_name = "NAME", value_parser = shared::non_empty)]
    pub kernel: Option<String>,

    /// Leave a device out whose compiler cannot be got here; may be repeated
    #[arg(long, value_name = "ID")]
    pub without: Vec<String>,

    /// Leave out every device whose compiler cannot be got here, and say which
    #[arg(long)]
    pub available: bool,

    /// Write docs/portability.md and the bounds anew
    #[arg(long, conflicts_with = "available")]
    pub write: bool,

    /// Print one JSON object for each device and kernel instead of text
    #[arg(long)]
    pub json: bool,
}

/// The process of `cargo xtask portability` that compiles.
#[derive(Debug, Clone, Args)]
pub struct PortabilityWorkerArgs {
    /// Library of a Vulkan driver
    #[arg(value_name = "LIBRARY")]
    pub library: PathBuf,

    /// The library is the DirectX shader compiler
    #[arg(long)]
    pub dxc: bool,
}

/// `cargo xtask pages`.
#[derive(Debug, Clone, Default, Args)]
pub struct PagesArgs {
    /// Write what differs, instead of failing
    #[arg(long)]
    pub write: bool,
}

/// `cargo xtask bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Suite to measure; by default complete requests
    #[arg(value_name = "SUITE", value_parser = values::Suite)]
    pub suite: Option<BenchSuite>,

    /// Replay this workload in `e2e` and `serve` instead of the built-in ones (RON, see xtask/cli/workloads); may be repeated
    #[arg(long, value_name = "FILE.ron")]
    pub workload: Vec<PathBuf>,

    /// Plan instead of the built-in one: a RON file for `e2e`, `policies` or `serve` (see e2e, policies, cli/policies and
    /// cli/workloads in xtask), or a name: for `e2e` one of beyond-gpu, cpu, gpu, host-weights, million, order, order-cpu, pools,
    /// pools-cpu, real-sizes, several-devices, shapes, sparse and sparse-no-coop, for `policies` turnover, for `serve` restart,
    /// which kills the server and starts it again
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<PathBuf>,

    /// Run only the kernels and shapes of `kernels` whose name contains this text, and the rows of `e2e` that
    /// contain each of its words, such as "q4_k 8x512", and workloads of `e2e` likewise, such as "bursts"; case is ignored
    #[arg(long, value_name = "NAME", value_parser = shared::non_empty)]
    pub filter: Option<String>,

    /// Run products and attention over a grid of shapes in `kernels`, as a decoder does, and name the ten that are furthest from
    /// their limits
    #[arg(long)]
    pub shapes: bool,

    /// Run fewer shapes and repetitions in `kernels`, and leave times of single kernels out of `e2e`
    #[arg(long)]
    pub quick: bool,

    /// Write tables and plots into this folder; an interrupted `policies` run is resumed from it
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Write a page about speed and loss of every policy, with a recommendation, in `policies`; by default report.html, in --out
    /// if that is given. What is measured is kept beside it, and --sparse auto goes by it
    #[arg(long, value_name = "FILE.html", num_args = 0..=1)]
    pub report: Option<Option<PathBuf>>,

    /// UTF-8 text whose likelihood --report measures; by default the first book of Newton's Opticks
    #[arg(long, value_name = "FILE", requires = "report")]
    pub text: Option<PathBuf>,

    /// Print one JSON object per row instead of tables
    #[arg(long)]
    pub json: bool,

    /// Load of `serve`.
    #[command(flatten)]
    pub served: ServedArgs,

    /// The engine to measure.
    #[command(flatten)]
    pub engine: EngineArgs,

    /// The flags that `engine` was read from, for servers that are started with it.
    #[arg(skip)]
    pub engine_flags: Vec<OsString>,
}

impl BenchArgs {
    /// The arguments of the suite `serve`, which `pagoda` has too.
    #[must_use]
    pub fn serve(&self) -> BenchServeArgs {
        BenchServeArgs {
            workload: self.workload.clone(),
            plan: self.plan.clone(),
            out: self.out.clone(),
            json: self.json,
            served: self.served.clone(),
            engine: self.engine.clone(),
            engine_flags: self.engine_flags.clone(),
        }
    }

    /// The arguments of the report of the suite `policies`, which `pagoda` has too.
    #[must_use]
    pub fn policies(&self) -> BenchPoliciesArgs {
        BenchPoliciesArgs {
            plan: self.plan.clone(),
            text: self.text.clone(),
            report: self.report.clone(),
            out: self.out.clone(),
            json: self.json,
            engine: self.engine.clone(),
        }
    }
}

/// `cargo xtask test`.
#[derive(Debug, Clone, Args)]
pub struct TestArgs {
    /// Arguments passed on to `cargo test`, for example `-p kvblock` or `-- --nocapture`
    #[arg(value_name = "CARGO TEST ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Suites of `cargo xtask bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchSuite {
    /// Each kernel by itself: time, bytes and FLOP per second.
    Kernels,
    /// Every sparse policy: density, recall and cost.
    Policies,
    /// Complete requests through the engine.
    E2e,
    /// Requests over HTTP, as they arrive at a server.
    Serve,
}

#[cfg(test)]
mod tests;
