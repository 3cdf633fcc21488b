//! Options of an engine: plain values, with the defaults of the command line.

use std::time::Duration;

use attn_kernels::gpu::{Checks, GpuOptions};
use attn_kernels::kernel::KvDtype;
use derive_setters::Setters;
use kvblock::UnknownName;
use models::{ActivationType, IndexDtype, KvOptions, LoadProgress};
use prefetch::engine::EngineConfig;
use prefetch::spec::TierSpec;
use scheduler::Policy as Order;
use strum::{Display, EnumString, VariantNames};

use crate::fetch::ModelCache;
use crate::sparse::Sparse;
use crate::stopwatch::Stopwatch;
use crate::{CacheEvents, Notes};

/// Folder of compiled kernels in the user's cache.
const KERNELS: &str = "kernels";

/// Maximum number of sequences that run at a time.
pub const MAX_SEQUENCES: u32 = 256;

/// Settings of an engine, and the memory that it may use.
#[derive(Debug, Clone, Setters)]
#[non_exhaustive]
pub struct EngineOptions {
    /// GPU adapter: its number, or part of its name, ignoring case; `None` for the fastest one.
    pub device: Option<String>,
    /// Adapters that the layers are split over, in place of `device`; `None` for all layers on one.
    #[setters(strip_option)]
    pub split: Option<LayerSplit>,
    /// Let kernels read KV blocks in host memory, if the adapter can; otherwise these blocks are only copied.
    pub host_buffers: bool,
    /// Keep the blocks by which the host tier extends the pool in device memory instead. Measurements then have the
    /// same decisions and copies, but no transfers over the bus.
    pub host_tier_on_device: bool,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Format of the keys of a model's own indexer; `None` for [the one that goes with `kv_dtype`](IndexDtype::beside).
    #[setters(into)]
    pub index_dtype: Option<IndexDtype>,
    /// Number of tokens per KV block: a power of two, at least 4.
    pub block_size: u32,
    /// Number of blocks in the KV pool, including the null block; overrides `kv_memory`.
    pub kv_blocks: Option<u32>,
    /// Memory of the KV pool in bytes; `None` for 0.9 of what adapter and host allow, less the weights, but no
    /// more than `demand` can use.
    pub kv_memory: Option<u64>,
    /// Bytes that weights may take on the device: the matrices of further layers stay in host memory, and every step brings
    /// them to the device. `None` for all weights on the device.
    pub weights_on_gpu: Option<u64>,
    /// Maximum number of tokens per step; longer prefills are split into chunks. If generating sequences may take more than a
    /// quarter of it, their tokens are added to it.
    pub chunk: u32,
    /// Maximum factor by which a prompt may lengthen the steps of other sequences that generate, above 1: `chunk` is
    /// reduced by measured step times, as [`scheduler::Pace`] says. With `None`, there is no limit, and steps depend
    /// on no clock.
    pub max_slowdown: Option<f64>,
    /// Maximum time of a step with prompt tokens: `chunk` is reduced by measured step times. With `None`, there is no
    /// limit, and steps depend on no clock.
    pub max_step_time: Option<Duration>,
    /// Use only kernels whose results for a request do not depend on the other requests of a batch.
    pub reproducible: bool,
    /// Let kernels use cooperative matrices, which round to f16, if the adapter has them.
    pub coop: bool,
    /// Type that products with quantised weights round activations to.
    pub activations: ActivationType,
    /// Attention to selected blocks; `None` for full attention.
    #[setters(strip_option)]
    pub sparse: Option<Sparse>,
    /// KV tiers below the device pool. Engines of one [`Model`](crate::Model) share one host tier if their blocks
    /// have the same format and their tiers differ at most in the disk.
    #[setters(strip_option)]
    pub kv_tiers: Option<TierSpec>,
    /// Sequences and tokens to make room for; `None` for [`MAX_SEQUENCES`] sequences of the model's context length.
    #[setters(strip_option)]
    pub demand: Option<Demand>,
    /// Maximum number of tokens of a sequence, prompt and output together; `None` for the model's context length. A
    /// value up to the first context of a model with LongRoPE selects the factors for short texts, as
    /// [`DecoderConfig::for_longest`](models::DecoderConfig::for_longest) says.
    pub max_context: Option<u32>,
    /// Compile the kernels for all step sizes when the engine opens, and reserve memory for the largest steps, so
    /// that no step waits for a kernel. Meant for servers. Has no effect on software drivers, which compile a kernel
    /// when it first runs.
    pub prepare: bool,
    /// Way in which a sequence that must give up its KV blocks gets them back.
    pub preemption: Preemption,
    /// Start a sequence only when KV blocks for its whole prompt are free, not only for its first chunk: it starts later, and is
    /// preempted less.
    pub reserve_full_input: bool,
    /// Send a decode step before the tokens of the step before it are read, so that the device does not wait for the host.
    /// Requests that arrive join one step later. `None` for GPUs alone: a software driver computes on the host.
    #[setters(strip_option)]
    pub async_scheduling: Option<bool>,
    /// Order of service.
    pub order: Order,
    /// Parts of the KV cache whose changes are reported to [followers](crate::Engine::follow).
    pub cache_events: CacheEvents,
    /// Receiver of messages for the user; by default, they are dropped.
    pub notes: Notes,
    /// Counter of the weights while they are loaded: a clone reports the progress to another thread.
    pub loading: LoadProgress,
    /// Source of the step times that decide up to which length decode steps attend densely despite a sparse policy;
    /// by default the clock.
    pub stopwatch: Stopwatch,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: None,
            split: None,
            host_buffers: true,
            host_tier_on_device: false,
            kv_dtype: KvDtype::F16,
            index_dtype: None,
            block_size: 16,
            kv_blocks: None,
            kv_memory: None,
            weights_on_gpu: None,
            chunk: 2048,
            max_slowdown: None,
            max_step_time: None,
            reproducible: false,
            coop: true,
            activations: ActivationType::default(),
            sparse: None,
            kv_tiers: None,
            demand: None,
            max_context: None,
            prepare: false,
            preemption: Preemption::Recompute,
            reserve_full_input: false,
            async_scheduling: None,
            order: Order::Fcfs,
            cache_events: CacheEvents::None,
            notes: Notes::default(),
            loading: LoadProgress::default(),
            stopwatch: Stopwatch::default(),
        }
    }
}

impl EngineOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens that a sequence may have, of a model whose context length is `context_length`.
    pub(crate) fn context_within(&self, context_length: u32) -> u32 {
        self.max_context.map_or(context_length, |tokens| tokens.min(context_length))
    }

    /// Sequences and tokens to make room for, with a model whose context length is `context_length`.
    pub(crate) fn demand_within(&self, context_length: u32) -> Demand {
        let context_length = self.context_within(context_length);
        let most = || Demand {
            sequences: MAX_SEQUENCES,
            tokens: u64::from(context_length) * u64::from(MAX_SEQUENCES),
            longest: context_length.into(),
        };
        let demand = self.demand.unwrap_or_else(most);
        let longest = match self.max_context {
            Some(_) => demand.longest.min(context_length.into()),
            None => demand.longest,
        };
        Demand { sequences: demand.sequences.clamp(1, MAX_SEQUENCES), longest, ..demand }
    }

    /// The options of the KV cache's layout. Blocks that no window reaches any more are freed.
    #[must_use]
    pub fn kv(&self) -> KvOptions {
        KvOptions::new(self.kv_dtype, self.block_size).index_dtype(self.index_dtype)
    }

    /// Limits of loads from KV tiers, as the policy states them, or the defaults.
    pub(crate) fn prefetching(&self) -> EngineConfig {
        let stated = self.sparse.as_ref().and_then(|sparse| sparse.policy.deployment().prefetch);
        stated.map_or(EngineConfig::GSA, |stated| {
            EngineConfig::GSA
                .prefetch_workers(stated.workers as usize)
                .max_pending_prefetch(stated.max_pending as usize)
                .prefetch_ahead(stated.ahead)
                .prefetch_cache_size(stated.cache_blocks as usize)
        })
    }

    /// The device that these options select, or the first one; kernels run without bounds checks.
    #[must_use]
    pub fn gpu(&self) -> GpuOptions {
        let first = self.split.as_ref().and_then(|split| split.devices.first());
        self.gpu_named(first.or(self.device.as_ref()))
    }

    /// The devices that these options select, one for each part of the layers.
    pub(crate) fn gpus(&self) -> Vec<GpuOptions> {
        match &self.split {
            None => vec![self.gpu()],
            Some(split) => split.devices.iter().map(|device| self.gpu_named(Some(device))).collect(),
        }
    }

    fn gpu_named(&self, device: Option<&String>) -> GpuOptions {
        let kernels = ModelCache::user().ok().map(|cache| cache.dir().join(KERNELS));
        let options = GpuOptions::new(Checks::Off).device(device.cloned());
        options.host_buffers(self.host_buffers).kernel_cache(kernels)
    }

    /// Number of devices that the layers are on.
    pub(crate) fn stages(&self) -> usize {
        self.split.as_ref().map_or(1, |split| split.devices.len())
    }
}

/// Layers on several devices, one after the other (pipeline parallelism): [`models::Pipeline`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSplit {
    /// Adapter of each part of the layers: its number, or part of its name. One adapter may have several parts.
    pub devices: Vec<String>,
    /// Number of layers of each part; `None` for about equal bytes of weights on each device.
    pub layers: Option<Vec<u32>>,
}

/// Number of sequences and tokens to keep at one time. If the size of the KV pool is not given, this bounds it,
/// because a pool never needs more blocks than all sequences can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Setters)]
#[non_exhaustive]
pub struct Demand {
    /// Maximum number of sequences that run at a time; others wait.
    #[setters(skip)]
    pub sequences: u32,
    /// Number of tokens of all sequences together.
    #[setters(skip)]
    pub tokens: u64,
    /// Number of tokens of the longest sequence.
    pub longest: u64,
}

impl Demand {
    /// A demand of `sequences` sequences with `tokens` tokens in total; one sequence may have all of these tokens.
    #[must_use]
    pub fn new(sequences: u32, tokens: u64) -> Self {
        Self { sequences, tokens, longest: tokens }
    }

    /// A demand of one sequence with `tokens` tokens.
    #[must_use]
    pub fn one(tokens: u64) -> Self {
        Self::new(1, tokens)
    }
}

/// Way in which a sequence that must give up its KV blocks gets them back; as text `recompute` or `swap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
#[non_exhaustive]
pub enum Preemption {
    /// The blocks are computed again when the sequence is resumed.
    #[default]
    Recompute,
    /// The blocks are copied to host memory and back.
    Swap,
}
