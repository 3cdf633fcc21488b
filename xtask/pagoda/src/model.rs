//! Opens what a command runs on: the device and the model, which is fetched first if it is the default one.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use attn_kernels::gpu::{Gpu, GpuOptions};
use attn_kernels::kernel::KvDtype;
use kvblock::{KvCacheGroup, LengthLimits};
use models::batch::Phase;
use models::{
    ChatTemplate, Checkpoint, Decoder, DecoderConfig, DecoderOptions, HostMemory, KvOptions, KvPlan, KvPool,
    Offload, Place, SparseOptions, Tokenizer,
};
use sparse_select::Registry;

use crate::cli::{self, EngineArgs, SelectOn};
use crate::default_model;
use crate::setup::{self, Need};
use crate::verdicts;

/// A checkpoint, open but not yet on a device.
#[derive(Debug)]
pub struct Model {
    checkpoint: Checkpoint,
    /// What it computes.
    pub config: DecoderConfig,
    /// `None` where the checkpoint has none.
    pub tokenizer: Option<Tokenizer>,
    /// `None` where the checkpoint has none.
    pub chat: Option<ChatTemplate>,
    /// The device that it was first loaded on, and the options that it was opened with.
    gpu: OnceLock<(GpuOptions, Arc<Gpu>)>,
}

impl Model {
    /// Opens `--model` or `--random`, or the default model, which the first use fetches.
    ///
    /// # Errors
    /// If the checkpoint is missing or broken, with its path, or could not be fetched.
    pub fn open(args: &EngineArgs) -> Result<Self> {
        let (checkpoint, shown) = match (&args.random, &args.model) {
            (Some(spec), _) => (Checkpoint::random(spec.clone()), spec.to_string()),
            (None, model) => {
                let path = model.clone().map_or_else(default_model::path, Ok)?;
                let shown = path.display().to_string();
                (Checkpoint::open(&path).with_context(|| format!("model {shown}"))?, shown)
            }
        };
        let config = checkpoint.config().with_context(|| format!("model {shown}"))?;
        let tokenizer = checkpoint.tokenizer().with_context(|| format!("model {shown}"))?;
        let chat = checkpoint.chat_template().with_context(|| format!("model {shown}"))?;
        Ok(Self { checkpoint, config, tokenizer, chat, gpu: OnceLock::new() })
    }

    /// A fingerprint of weights and configuration; reads the whole checkpoint.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn fingerprint(&self) -> Result<u128> {
        Ok(self.checkpoint.fingerprint()?)
    }

    /// Loads the model on the device that `args` select.
    ///
    /// `wanted` bounds the KV pool if its size was not given, because more than all sequences can hold is
    /// never used. If the longest sequence does not fit in the pool, blocks of the host tier extend it.
    ///
    /// # Errors
    /// If there is no device or not enough memory, or a tensor does not fit the configuration.
    pub fn load(&self, args: &EngineArgs, max_rows: u32, max_seqs: u32, wanted: Wanted) -> Result<Decoder> {
        self.load_with(args, max_rows, max_seqs, wanted, None)
    }

    /// Like [`load`](Self::load), but every step also reports what `watch` asks for about the selections of a
    /// sparse policy.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn load_watched(
        &self,
        args: &EngineArgs,
        max_rows: u32,
        max_seqs: u32,
        wanted: Wanted,
        watch: Watch,
    ) -> Result<Decoder> {
        self.load_with(args, max_rows, max_seqs, wanted, Some(watch))
    }

    /// Largest number of blocks, including the null block, that one sequence of `tokens` tokens uses in steps
    /// of `max_rows` rows.
    ///
    /// # Errors
    /// If the caches cannot have this block size.
    pub fn most_used(&self, args: &EngineArgs, max_rows: u32, tokens: u64) -> Result<u64> {
        let options =
            KvOptions { dtype: kv_dtype(args.kv_dtype), block_size: args.block_size, recycle: true };
        let plan = KvPlan::new(&self.config, options)?;
        Ok(most_used(&plan, max_rows, 1, Wanted { tokens, longest: tokens }))
    }

    /// The device that `args` select, opened once.
    fn gpu(&self, args: &EngineArgs) -> Result<Arc<Gpu>> {
        let options = args.gpu();
        if let Some((opened, gpu)) = self.gpu.get()
            && *opened == options
        {
            return Ok(Arc::clone(gpu));
        }
        setup::ensure(&[Need::Gpu])?;
        let gpu = Arc::new(verdicts::open(&options)?);
        eprintln!("device: {} ({:?}, {})", gpu.info().name, gpu.level(), gpu.info().driver_info);
        let _ = self.gpu.set((options, Arc::clone(&gpu)));
        Ok(gpu)
    }

    fn load_with(
        &self,
        args: &EngineArgs,
        max_rows: u32,
        max_seqs: u32,
        wanted: Wanted,
        watch: Option<Watch>,
    ) -> Result<Decoder> {
        let gpu = self.gpu(args)?;
        let kv_dtype = kv_dtype(args.kv_dtype);
        // Tiers keep blocks of all layers, so no block is freed before its request ends.
        let recycle = args.kv_tiers.is_none();
        let options = KvOptions { dtype: kv_dtype, block_size: args.block_size, recycle };
        let plan = KvPlan::new(&self.config, options)?;
        let most = most_used(&plan, max_rows, max_seqs, wanted);
        let num_blocks = num_blocks(args, &gpu, &plan, most)?;
        let memory = if gpu.has_host_buffers() { HostMemory::Mapped } else { HostMemory::Staged };
        let offload = offload(args, &plan, num_blocks, (wanted, max_seqs), memory);
        let options = DecoderOptions {
            kv_dtype,
            block_size: args.block_size,
            recycle,
            num_blocks,
            max_rows,
            max_seqs,
            reproducible: args.reproducible,
            prefix_capacity: scheduler::PREFIX_CHUNK_CAPACITY,
            sparse: sparse(args, watch, wanted.longest)?,
            offload,
        };
        let decoder = Decoder::load(&gpu, &self.config, self.checkpoint.weights(), &options)?;
        let asked = args.select_on == SelectOn::Device && watch != Some(Watch::Worth);
        if let (Some(Place::Host), Some(spec), true) = (decoder.selects_on(), &args.sparse, asked) {
            eprintln!("sparse: no kernels for {spec}, so each layer waits for a selection on the host");
        }
        let got = decoder.kv().device_blocks();
        if got < num_blocks {
            let limit = KvPool::most_blocks(&gpu, &plan);
            match args.kv_blocks {
                Some(asked) => {
                    bail!("--kv-blocks {asked}: the device has room for {got} (a buffer holds {limit})")
                }
                None => eprintln!("memory is short: {got} KV blocks instead of {num_blocks}"),
            }
        }
        Ok(decoder)
    }
}

/// Numbers of tokens whose KV a command keeps at one time.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// All sequences together.
    pub tokens: u64,
    /// The longest one.
    pub longest: u64,
}

/// What a step reports about the selections of a sparse policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// The selected blocks.
    Blocks,
    /// The share of dense attention's mass in the selected blocks; selects on the host.
    Worth,
}

/// Slots of the ring through which blocks on the host pass.
const RING_SLOTS: u32 = 2;

/// Number of host-tier blocks that the longest sequence needs beyond the device pool; `None` if it fits.
fn offload(
    args: &EngineArgs,
    plan: &KvPlan,
    device_blocks: u32,
    (wanted, max_seqs): (Wanted, u32),
    memory: HostMemory,
) -> Option<Offload> {
    let host_bytes = args.kv_tiers.as_ref()?.host_bytes?;
    let size = u64::from(args.block_size);
    // One block is the null block.
    if wanted.longest.div_ceil(size) < u64::from(device_blocks) {
        return None;
    }
    // The null block is one more; it lies on the host if blocks are selected.
    let most = wanted.tokens.div_ceil(size) + u64::from(max_seqs) + u64::from(args.sparse.is_some());
    let host_blocks = u32::try_from((host_bytes / plan.block_bytes()).min(most)).unwrap_or(u32::MAX);
    (host_blocks > 0).then_some(Offload { host_blocks, ring_slots: RING_SLOTS, memory })
}

/// Size of the KV pool: as given, or what the requests can use and memory allows.
fn num_blocks(args: &EngineArgs, gpu: &Gpu, plan: &KvPlan, most_used: u64) -> Result<u32> {
    if let Some(blocks) = args.kv_blocks {
        return Ok(blocks);
    }
    let block_bytes = plan.block_bytes();
    let most = u64::from(KvPool::most_blocks(gpu, plan));
    let (budget, wanted) = match args.kv_memory {
        Some(bytes) => (bytes, most),
        None => (free_bytes(gpu), most_used),
    };
    let blocks = (budget / block_bytes).min(most).min(wanted);
    if blocks < 2 {
        bail!("{budget} bytes for the KV cache hold {blocks} blocks of {block_bytes} bytes, 2 are needed");
    }
    Ok(u32::try_from(blocks).unwrap_or(u32::MAX))
}

/// Largest number of blocks, including the null block, that sequences of `wanted` tokens use in steps of
/// `max_rows` rows: in groups with windows or chunks, as many as these hold; in other groups, as many as all
/// tokens fill; and in every group one more per sequence, whose last block is partial.
fn most_used(plan: &KvPlan, max_rows: u32, max_seqs: u32, wanted: Wanted) -> u64 {
    let max_model_len = u32::try_from(wanted.longest).unwrap_or(u32::MAX);
    let limits = LengthLimits { max_model_len, max_batched_tokens: max_rows };
    let seqs = u64::from(max_seqs);
    let of_group = |group: &KvCacheGroup| {
        let all = wanted.tokens.div_ceil(u64::from(group.spec.block_size.get())) + seqs;
        group.spec.admission_cap(limits).map_or(all, |held| all.min(u64::from(held) * seqs))
    };
    plan.layout.groups.iter().map(of_group).sum::<u64>() + 1
}

/// 0.9 of the free memory, which is the host's if the device shares it. wgpu does not report the memory of
/// discrete devices; there, pool sizes are tried and halved until one fits.
fn free_bytes(gpu: &Gpu) -> u64 {
    use attn_kernels::gpu::wgpu::DeviceType;
    let shares = matches!(gpu.info().device_type, DeviceType::Cpu | DeviceType::IntegratedGpu);
    let free = if shares { host_available() } else { None };
    free.map_or(u64::MAX, |bytes| bytes / 10 * 9)
}

/// `MemAvailable` from Linux's /proc/meminfo, in bytes.
pub(crate) fn host_available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// `--sparse` in the form that the decoder takes, `None` if attention is full. Reports on stderr what stays
/// dense in sequences of up to `longest` tokens.
fn sparse(args: &EngineArgs, watch: Option<Watch>, longest: u64) -> Result<Option<SparseOptions>> {
    let Some(spec) = &args.sparse else { return Ok(None) };
    let policy = Registry::builtin().build(spec)?;
    if policy.name() == "full" {
        return Ok(None);
    }
    let place = match args.select_on {
        SelectOn::Device => Place::Device,
        SelectOn::Host => Place::Host,
    };
    let [trace, measure] = [Watch::Blocks, Watch::Worth].map(|kind| watch == Some(kind));
    let options = SparseOptions { policy: policy.into(), place, trace, measure };
    options.check(args.block_size).with_context(|| format!("--sparse {spec}"))?;
    dense_notes(&options, longest).iter().for_each(|note| eprintln!("sparse: {note}"));
    Ok(Some(options))
}

/// Where a policy keeps every block, regardless of the tensors.
fn dense_notes(options: &SparseOptions, longest: u64) -> Vec<String> {
    let (policy, name) = (&options.policy, options.policy.name());
    if policy.keeps_all(None, usize::try_from(longest).unwrap_or(usize::MAX)) {
        let tokens = policy.support().dense_below_tokens;
        return vec![format!(
            "{name} keeps everything below {tokens} tokens, and none here has more than {longest}"
        )];
    }
    let phases = [(Phase::Prefill, "prefill"), (Phase::Decode, "decode")];
    let dense = phases.iter().filter(|(phase, _)| !options.acts_on(*phase));
    dense.map(|(_, phase)| format!("{name} selects nothing in {phase}, which stays dense")).collect()
}

fn kv_dtype(dtype: cli::KvDtype) -> KvDtype {
    match dtype {
        cli::KvDtype::F16 => KvDtype::F16,
        cli::KvDtype::F32 => KvDtype::F32,
        cli::KvDtype::Fp8 => KvDtype::Fp8,
        cli::KvDtype::Int8 => KvDtype::Int8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_lengths_that_stay_dense_are_told() {
        let registry = Registry::builtin();
        let of = |spec: &str, longest| {
            let policy = registry.build(&spec.parse().unwrap()).unwrap().into();
            dense_notes(
                &SparseOptions { policy, place: Place::Device, trace: false, measure: false },
                longest,
            )
        };
        let others = registry.entries().iter().filter(|entry| entry.name != "full");
        let notes: Vec<String> = others.flat_map(|entry| of(entry.name, 100_000)).collect();
        insta::assert_snapshot!(notes.join("\n"), @"
        gsa-ucm selects nothing in prefill, which stays dense
        esa selects nothing in prefill, which stays dense
        kvstar selects nothing in prefill, which stays dense
        kvcomp selects nothing in prefill, which stays dense
        xattn selects nothing in decode, which stays dense
        xattn-bsa selects nothing in decode, which stays dense
        quest selects nothing in prefill, which stays dense
        dsa selects nothing in prefill, which stays dense
        nsa selects nothing in prefill, which stays dense
        ");
        insta::assert_snapshot!(of("gsa-ucm", 4000)[0], @"gsa-ucm keeps everything below 8401 tokens, and none here has more than 4000");
    }

    /// 4 sequences of 1,000 tokens in blocks of 16, in steps of 68 rows.
    fn blocks(name: &str, recycle: bool) -> u64 {
        let folder = [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures", name];
        let config = DecoderConfig::from_hf_dir(folder.iter().collect::<std::path::PathBuf>()).unwrap();
        let options = KvOptions { dtype: KvDtype::F16, block_size: 16, recycle };
        let plan = KvPlan::new(&config, options).unwrap();
        most_used(&plan, 68, 4, Wanted { tokens: 4000, longest: 1000 })
    }

    #[test]
    fn windows_and_chunks_take_no_more_blocks_than_they_hold() {
        let full = 250 + 4;
        assert_eq!(blocks("tiny-llama", true), full + 1);
        // A window of 24 and a step of 68 rows see 91 tokens: 6 blocks, or 7 if the first one is partial.
        assert_eq!(blocks("tiny-mistral", true), 4 * (6 + 1) + 1);
        assert_eq!(blocks("tiny-mistral", false), full + 1);
        // Windows of 16 beside full attention; three groups with chunks of 16 beside one of full attention.
        assert_eq!(blocks("tiny-gpt-oss", true), full + 4 * (6 + 1) + 1);
        assert_eq!(blocks("tiny-llama4", true), full + 3 * 4 * 6 + 1);
    }
}
