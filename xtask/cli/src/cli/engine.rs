//! Flags of the engine.

use std::ffi::OsString;
use std::path::PathBuf;

use attn_kernels::gpu::{Checks, GpuOptions};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use models::{ActivationType, Dtype, RandomSpec};
use pagoda::usage::readable;
use pagoda::{IndexDtype, KvDtype, SelectionPlace, Sparse};
use prefetch::spec::TierSpec;

use super::{SparseArg, sparse, values};
use crate::default_model;
use crate::devices::SplitBy;

/// Flags of the engine, common to every command that runs a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Model folder (config.json + safetensors), GGUF file, hf:USER/REPO or hf:USER/REPO:FILE of the Hugging Face hub,
    /// or gemma-3-270m, which is fetched on first use and comes with terms of its own; by default SmolLM2-135M-Instruct
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// Random weights of a shape instead of a model, made in memory, such as llama-3-8b:q4_k,layers=2; SHAPE is a
    /// name or a RON file (see models/checkpoint/shapes). There is no tokenizer: prompts are --ids-file
    #[arg(long, value_name = "SHAPE[:TYPE][,layers=N]", value_parser = values::random, conflicts_with = "model")]
    pub random: Option<RandomSpec>,

    /// Quantise matrices of f32, f16 and bf16 when the model is loaded: q8_0, q6_k, q5_1, q5_0, q5_k, q4_1, q4_0 or
    /// q4_k
    #[arg(long, value_name = "TYPE", value_parser = values::quantize)]
    pub quantize: Option<Dtype>,

    /// Sparse-attention policy: NAME, NAME:key=value,key=value, a preset, FILE.ron, or auto:loss=0.5% for the fastest one
    /// that loses at most that, as `bench policies --report` measured on this model and device; if it did not, a GPU measures
    /// a few policies at the first use. By default attention is full
    #[arg(long, value_name = "SPEC", value_parser = sparse::no_choice)]
    pub sparse: Option<SparseArg>,

    /// Place where blocks are scored: on the device, if the policy has kernels, or by the policy's CPU code on the
    /// host
    #[arg(long, value_name = "PLACE", default_value_t = SelectionPlace::Device, value_parser = values::named::<SelectionPlace>())]
    pub select_on: SelectionPlace,

    /// Certify in every decode step the attention mass that the policy keeps; policies without a bound refuse it
    #[arg(long, requires = "sparse")]
    pub certify: bool,

    /// Element type of the KV cache: floats of 4 or 2 bytes, or floats or integers of 8 bits with scales
    #[arg(long, value_name = "TYPE", default_value_t = KvDtype::F16, value_parser = values::named::<KvDtype>())]
    pub kv_dtype: KvDtype,

    /// Format of the keys of a model's own indexer (DeepSeek V3.2 and V4); fp8 has a scale per key, as DeepSeek
    /// publishes; by default that of the KV cache, f16 for int8
    #[arg(long, value_name = "TYPE", value_parser = values::named::<IndexDtype>())]
    pub index_dtype: Option<IndexDtype>,

    /// Tokens per KV block: a power of two from 4 to 256
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = values::block_size)]
    #[arg(allow_negative_numbers = true)]
    pub block_size: u32,

    /// Blocks in the KV pool, including the null block; overrides --kv-memory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    #[arg(allow_negative_numbers = true)]
    pub kv_blocks: Option<u32>,

    /// Memory of the KV pool in bytes, or with a suffix KiB, MiB, GiB or KB, MB, GB; by default 0.9 of what adapter
    /// and host allow, less the weights
    #[arg(long, value_name = "BYTES", value_parser = values::memory, allow_negative_numbers = true)]
    pub kv_memory: Option<u64>,

    /// Bytes that weights may take on the GPU, with a suffix as for --kv-memory: the layers beyond lie in host memory,
    /// and every step brings them to the GPU; by default all weights are there
    #[arg(long, value_name = "BYTES", value_parser = values::memory, allow_negative_numbers = true)]
    pub weights_on_gpu: Option<u64>,

    /// Maximum number of tokens per step; longer prefills are split into chunks. Sequences that generate
    /// take their part of it, up to a quarter, beyond which they come in addition
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(allow_negative_numbers = true)]
    pub chunk: u32,

    /// Use only kernels whose results for a request do not depend on the other requests of a batch
    #[arg(long)]
    pub reproducible: bool,

    /// Keep kernels off cooperative matrices, as on devices without them
    #[arg(long)]
    pub no_coop: bool,

    /// Read the tokens of each decode step before the next one is sent: a GPU waits for the host between steps, and a request
    /// that arrives joins one step earlier
    #[arg(long)]
    pub no_async_scheduling: bool,

    /// Type that products with quantised weights round activations to: auto is int8 on GPUs and f32 on software drivers; f32
    /// is f16 where cooperative matrices run; int8 has a scale per 32 elements, in steps of few rows or without these matrices
    #[arg(long, value_name = "TYPE", default_value_t = ActivationType::Auto, value_parser = values::named::<ActivationType>())]
    pub activations: ActivationType,

    /// KV tiers below the GPU's pool, such as host=2GiB,disk=PATH:20GiB,remote=redis://HOST:PORT/DB
    #[arg(long, value_name = "SPEC", value_parser = values::Tiers)]
    pub kv_tiers: Option<TierSpec>,

    /// GPU adapter: its number in `doctor`, or part of its name, ignoring case; by default the fastest one.
    /// `serve` takes several, such as 0,1, or all, with an engine on each
    #[arg(long, value_name = "NAME", value_parser = values::non_empty)]
    pub device: Option<String>,

    /// One model on several devices, which --device lists: its layers are split, evenly by bytes, or by number as in
    /// layers=20,12. Each device has the KV cache of its layers
    #[arg(long, value_name = "layers[=N,N]", requires = "device", value_parser = str::parse::<SplitBy>)]
    pub split: Option<SplitBy>,

    /// Do not let kernels read host memory, as on devices where they cannot: KV blocks on the host are only
    /// copied
    #[arg(long)]
    pub no_host_buffers: bool,

    /// Memory of the device for the blocks that the host tier holds beyond the pool: a measurement of `bench e2e`.
    #[arg(skip)]
    pub host_tier_on_device: bool,

    /// Print results and errors alone, without notes and times
    #[arg(long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Also say what was loaded, how long it took, and what each step computes
    #[arg(long)]
    pub verbose: bool,
}

impl EngineArgs {
    /// The device that these flags select; kernels run without bounds checks.
    #[must_use]
    pub fn gpu(&self) -> GpuOptions {
        let host_buffers = !self.no_host_buffers;
        GpuOptions::new(Checks::Off).device(self.device.clone()).host_buffers(host_buffers)
    }

    /// Names the engine: the model, and the flags that change its computation.
    #[must_use]
    pub fn label(&self) -> String {
        let model = match (&self.random, &self.model) {
            (Some(spec), _) => spec.to_string(),
            (None, Some(path)) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            (None, None) => default_model::PACKAGE.file.to_owned(),
        };
        let flags = [
            (self.no_coop, "no-coop"),
            (self.no_async_scheduling, "no-async-scheduling"),
            (self.reproducible, "reproducible"),
            (self.host_tier_on_device, "control"),
        ];
        let flags = flags.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.to_owned());
        let sparse = self.sparse.as_ref().map(ToString::to_string);
        let weights = self.weights_on_gpu.map(|bytes| format!("weights on gpu {}", readable(bytes)));
        let split = self.split.as_ref().zip(self.device.as_ref());
        let split = split.map(|(by, devices)| format!("{by} on {devices}"));
        std::iter::once(model)
            .chain(flags)
            .chain(weights)
            .chain(split)
            .chain(sparse)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The sparse-attention policy, `None` for dense attention.
    ///
    /// # Panics
    /// If `--sparse` is a limit of loss, and no model was opened.
    #[must_use]
    pub fn policy(&self) -> Option<&Sparse> {
        self.sparse.as_ref()?.policy()
    }
}

impl EngineArgs {
    /// The flags of the engine among the arguments of a command, as they were given.
    #[must_use]
    pub fn given(matches: &ArgMatches) -> Vec<OsString> {
        let mut flags = Vec::new();
        for arg in Self::augment_args(Command::new("engine")).get_arguments() {
            let id = arg.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let name = format!("--{}", arg.get_long().expect("flags of the engine have long names"));
            if arg.get_action().takes_values() {
                let values = matches.get_raw(id).into_iter().flatten();
                flags.extend(values.map(|value| [format!("{name}=").as_ref(), value].into_iter().collect()));
            } else if matches.get_flag(id) {
                flags.push(name.into());
            }
        }
        flags
    }
}
