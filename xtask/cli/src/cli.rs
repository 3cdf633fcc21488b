//! The command line: every subcommand and flag, and the checks that refuse a bad value before anything runs.
//!
//! Results go to stdout (with `--json`, exactly one JSON object per line), everything else to stderr. Exit
//! codes: 0 success, 1 failure, 2 wrong usage.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use pagoda::Registry;

mod chat;
mod engine;
mod generate;
mod policies;
mod sampling;
mod score;
mod serve;
mod served;
mod slo;
pub mod sources;
mod sparse;
mod template;
mod tips;
pub mod values;

pub use chat::ChatArgs;
pub use engine::EngineArgs;
pub use generate::GenerateArgs;
pub use policies::BenchPoliciesArgs;
pub use sampling::{Defaults, SamplingArgs};
pub use score::ScoreArgs;
pub use serve::{LogForm, ServeArgs};
pub use served::{BenchServeArgs, Loss, PromptForm, ServedArgs};
pub use slo::Slo;
pub use sources::Sources;
pub use sparse::{Auto, SparseArg};
pub use template::TemplateArgs;

/// `pagoda`: one subcommand and its flags.
#[derive(Debug, Parser)]
#[command(name = "pagoda", about, version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// Subcommand to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text from prompts; several prompts are served as one continuous batch
    #[command(alias = "generate")]
    Run(Box<GenerateArgs>),
    /// A command that `cargo xtask` has too.
    #[command(flatten)]
    Shared(Shared),
    /// Measure sparse policies, or a server
    #[command(subcommand)]
    Bench(Bench),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the man page, or write one for each command
    Man(ManArgs),
}

/// `pagoda completions`.
#[derive(Debug, Clone, Copy, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// `pagoda man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Folder for pagoda.1 and a page for each command, such as pagoda-run.1
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// `pagoda pull`.
#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// Model to fetch: hf:USER/REPO or hf:USER/REPO:FILE of the Hugging Face hub, gemma-3-270m, or default
    #[arg(value_name = "MODEL", value_parser = values::non_empty)]
    pub model: String,
}

/// Subcommands of `pagoda` and of `cargo xtask`.
#[derive(Debug, Subcommand)]
pub enum Shared {
    /// Talk with a model in the terminal
    Chat(Box<ChatArgs>),
    /// Serve the APIs of OpenAI and Anthropic over HTTP
    Serve(Box<ServeArgs>),
    /// Fetch a model, and print the path of its files
    Pull(PullArgs),
    /// List the models in the caches and in folders: what loads, and why not
    Models(ModelsArgs),
    /// Run given tokens through the model: mean negative log likelihood and most likely next tokens
    Score(Box<ScoreArgs>),
    /// Print the token ids of a text, as --ids-file takes them
    Tokenize(TokenizeArgs),
    /// Report what was found on this machine, which kernels it gets, what is missing and how to install it
    Doctor(DoctorArgs),
}

/// Suites of `pagoda bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Send requests over HTTP as they arrive at a server, to one that is started for it or to any other
    Serve(Box<BenchServeArgs>),
    /// Measure loss and speed of sparse policies on this model and device, and write a page with a recommendation, which
    /// --sparse auto follows
    Policies(Box<BenchPoliciesArgs>),
}

impl Cli {
    /// The command with everything that is read from the command line.
    pub(crate) fn definition(registry: &Registry) -> clap::Command {
        sources::with_sources(with_policies(Self::command(), registry))
    }

    /// Reads the arguments of this process; wrong usage ends it with exit code 2. `--sparse` names policies of
    /// `registry`.
    #[must_use]
    pub fn read(registry: &Registry) -> Self {
        let args = std::env::args_os().collect();
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
        let args = args.into_iter().map(Into::into).collect();
        Self::parse_with(registry, args, &Sources::default())
    }

    /// Parses `args`, together with flags from the environment and from a file.
    ///
    /// # Errors
    /// Wrong usage, and what is wrong in a source.
    pub fn parse_with(
        registry: &Registry,
        args: Vec<OsString>,
        sources: &Sources,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::definition(registry);
        let matches = sources::parse(&command, &args, sources)?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let (Command::Bench(Bench::Serve(args)), Some((_, bench))) =
            (&mut cli.command, matches.subcommand())
            && let Some((_, matches)) = bench.subcommand()
        {
            args.engine_flags = EngineArgs::given(matches);
        }
        Ok(cli)
    }
}

/// The command with subcommands whose `--sparse` takes policies of `registry`.
#[must_use]
pub fn with_policies(command: clap::Command, registry: &Registry) -> clap::Command {
    command.mut_subcommands(|command| {
        let command = with_policies(command, registry);
        if command.get_arguments().all(|arg| arg.get_id() != "sparse") {
            return command;
        }
        let registry = registry.clone();
        let choice = move |text: &str| SparseArg::read(&registry, text);
        command.mut_arg("sparse", |arg| arg.value_parser(choice))
    })
}

/// `pagoda tokenize`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("input").required(true).args(["text", "file"]))]
pub struct TokenizeArgs {
    /// Model whose tokenizer is used; by default SmolLM2-135M-Instruct
    #[arg(long, short, value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// The text
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,

    /// File with the text; - is standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Leave the tokens out that a model puts before and after every text
    #[arg(long)]
    pub no_special: bool,
}

/// `pagoda models`.
#[derive(Debug, Clone, Args)]
pub struct ModelsArgs {
    /// Folders and files to look at in place of the caches; the command fails after its list if one of them has no model
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// Print one JSON object per model instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `pagoda doctor`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("tested").multiple(true).args(["self_test", "models"]))]
pub struct DoctorArgs {
    /// Install what the commands lack: by apt-get, as root on Debian and Ubuntu; elsewhere, the command to run is printed
    #[arg(long)]
    pub install: bool,

    /// Also run every kernel on each adapter and compare it with its CPU reference; a level that fails under
    /// this driver is remembered, and the engine avoids it
    #[arg(long)]
    pub self_test: bool,

    /// Also draw N specs for every variant of --self-test: lengths, rows, heads, strides and data at random
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "self_test")]
    pub random: Option<u32>,

    /// Seed of the first spec of --random, which the others count up from; by default of the clock. It is printed, and
    /// with each failure the seed that repeats it
    #[arg(long, value_name = "S", requires = "random")]
    pub seed: Option<u64>,

    /// Also run the models in the folders of DIR on each adapter and compare logits and tokens with the
    /// references beside them; by default, DIR holds the tiny models of every family, in a checkout of the sources
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    pub models: Option<Option<PathBuf>>,

    /// Also say what a model takes: memory of weights and of the KV cache at which context, what fits, and which modes
    /// work
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// Memory to fit --model into; by default that of the host, where the adapter shares it
    #[arg(long, value_name = "BYTES", value_parser = values::memory, requires = "model")]
    pub memory: Option<u64>,

    /// Type that --model is quantised to when it is loaded
    #[arg(long, value_name = "TYPE", value_parser = values::quantize, requires = "model")]
    pub quantize: Option<models::Dtype>,

    /// Adapter for --self-test and --models: its number here, or part of its name, ignoring case; by default
    /// all
    #[arg(long, value_name = "NAME", value_parser = values::non_empty, requires = "tested")]
    pub device: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests;
