//! Sizes of the KV pool: the need of the requests, and the limit of memory.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;
use attn_kernels::gpu::wgpu::DeviceType;
use kvblock::{KvCacheGroup, LengthLimits};
use models::{
    AttentionForm, DecoderConfig, HostMemory, KvPlan, KvPool, Mode, Offload, Pipeline, PoolOptions,
    SparseOptions,
};
use prefetch::engine::EngineConfig;
use prefetch::spill::{Spill, SpillShape};
use sparse_select::dsa::chunk::Memory;

use crate::error::Error;
use crate::options::{Demand, EngineOptions, MAX_SEQUENCES};
use crate::{Note, error_chain};

/// Divisor of the number of blocks of a pool with several buffers per layer: the quotient is the number of slots for
/// pages that a policy selects.
const SLOTS_PART: u32 = 8;

/// Number of slots of the ring through which blocks on the host pass: one receives blocks while attention reads the
/// other.
const RING_SLOTS: u32 = 2;

/// Size of the KV pool in blocks: as given, or the need of the requests within the limit of memory. Only a given size may
/// exceed the blocks that one buffer per layer holds.
pub(crate) fn num_blocks(
    options: &EngineOptions,
    gpu: &Gpu,
    config: &DecoderConfig,
    plan: &KvPlan,
    max_used_blocks: u64,
) -> Result<u32, Error> {
    if let Some(blocks) = options.kv_blocks {
        return Ok(blocks);
    }
    let block_bytes = plan.block_bytes();
    let most = u64::from(KvPool::max_blocks(gpu, plan));
    let (budget_bytes, wanted) = match options.kv_memory {
        Some(bytes) => (bytes, if is_cut(options, config, plan) { u64::MAX } else { most }),
        None => (free_bytes(gpu), max_used_blocks.min(most)),
    };
    let blocks = (budget_bytes / block_bytes).min(wanted);
    if blocks < 2 {
        return Err(Error::KvMemory { budget_bytes, blocks, block_bytes });
    }
    Ok(saturated(blocks))
}

/// Memory that a KV pool of `blocks` blocks leaves free of its budget, in bytes. The scores of an indexer may use it.
/// `None` if no budget is set and the device reports none.
pub(crate) fn left(options: &EngineOptions, gpu: &Gpu, plan: &KvPlan, blocks: u32) -> Option<Memory> {
    let total = options.kv_memory.unwrap_or_else(|| free_bytes(gpu));
    let free = total.saturating_sub(u64::from(blocks) * plan.block_bytes());
    (total < u64::MAX).then_some(Memory { free, total })
}

/// Maximum number of blocks, including the null block, that sequences use in steps of `max_rows` rows. A group needs
/// blocks for all tokens, and one more per sequence for its partial block; with a window or chunks, at most those
/// that the sequences hold at a time.
pub(crate) fn max_used_blocks(plan: &KvPlan, max_rows: u32, demand: Demand) -> u64 {
    let limits = LengthLimits::new(saturated(demand.longest)).max_batched_tokens(max_rows);
    let seqs = u64::from(demand.sequences);
    let of_group = |group: &KvCacheGroup| {
        let all = demand.tokens.div_ceil(u64::from(group.spec.block_size.get())).saturating_add(seqs);
        group.spec.admission_cap(limits).map_or(all, |held| all.min(u64::from(held) * seqs))
    };
    plan.layout.groups.iter().map(of_group).fold(1, u64::saturating_add)
}

/// Number of blocks that the longest sequence holds at a time, and the null block.
fn longest_blocks(plan: &KvPlan, max_rows: u32, demand: Demand) -> u64 {
    let limits = LengthLimits::new(saturated(demand.longest)).max_batched_tokens(max_rows);
    let of_group = |group: &KvCacheGroup| {
        let whole = group.spec.block_size.blocks_for(limits.max_model_len);
        u64::from(group.spec.max_blocks_per_seq(limits).min(whole))
    };
    1 + plan.layout.groups.iter().map(of_group).sum::<u64>()
}

/// Whether there is a host tier, and a pool of `num_blocks` blocks is too small for the longest sequence.
pub(crate) fn goes_on(
    options: &EngineOptions,
    plan: &KvPlan,
    num_blocks: u32,
    max_rows: u32,
    demand: Demand,
) -> bool {
    let host = options.kv_tiers.as_ref().is_some_and(|tiers| tiers.host_bytes.is_some());
    host && longest_blocks(plan, max_rows, demand) > u64::from(num_blocks)
}

/// Whether a pool on the device may be in several buffers per layer. It may if the model has no host tier, which would
/// otherwise hold the blocks beyond one buffer, and no policy reads the keys of all blocks at once.
fn is_cut(options: &EngineOptions, config: &DecoderConfig, plan: &KvPlan) -> bool {
    let tier = options.kv_tiers.as_ref().and_then(|tiers| tiers.host_bytes);
    let serves = Mode::HostKv.lacks(AttentionForm::of(config)).is_none() && !reads_one_buffer(options);
    serves && tier.is_none() && plan.layout.groups.len() == 1
}

fn reads_one_buffer(options: &EngineOptions) -> bool {
    selection(options).is_some_and(|selection| selection.reads_one_buffer())
}

/// The policy in the form that the decoder takes.
fn selection(options: &EngineOptions) -> Option<SparseOptions> {
    let sparse = options.sparse.as_ref()?;
    Some(SparseOptions::new(Arc::clone(&sparse.policy), sparse.place).measure(sparse.measure))
}

/// Blocks that extend the device pool, if the longest sequence does not fit in it.
#[derive(Debug)]
pub(crate) struct Extension {
    /// Number of blocks of the device pool itself.
    pub(crate) device_blocks: u32,
    /// Blocks in memory of the host.
    pub(crate) offload: Offload,
    /// Blocks on disk, if the host cannot hold all other blocks.
    pub(crate) spill: Option<Arc<Spill>>,
    /// Limits of reads from disk ahead of a policy's selections.
    pub(crate) reads_ahead: EngineConfig,
}

/// Sizes and options that an extension follows from.
pub(crate) struct Extended<'a> {
    pub(crate) options: &'a EngineOptions,
    pub(crate) gpu: &'a Gpu,
    pub(crate) config: &'a DecoderConfig,
    pub(crate) plan: &'a KvPlan,
    pub(crate) device_blocks: u32,
    /// Maximum number of rows of a step.
    pub(crate) max_rows: u32,
    pub(crate) demand: Demand,
}

/// Number of equal parts of the host tier's memory, if blocks are on disk. One part each buffers pieces read ahead,
/// pieces in use by the device, and blocks to be written, which leaves three quarters for blocks.
const STAGING_PARTS: u64 = 12;

/// Number of layers of a step whose written blocks are copied back from the device at the same time, each perhaps in
/// memory of up to twice its size.
const READBACKS: u64 = 4;

impl Extended<'_> {
    /// Blocks of the device pool beyond one buffer per layer, if the pool may be split. With a policy, all blocks
    /// except the slots for selected pages.
    pub(crate) fn extend_in_place(&self) -> Option<Extension> {
        let Self { options, gpu, config, plan, device_blocks, .. } = *self;
        let most = KvPool::max_blocks(gpu, plan);
        if device_blocks <= most || !is_cut(options, config, plan) {
            return None;
        }
        let own = if options.sparse.is_some() { most.min(device_blocks / SLOTS_PART) } else { most };
        let offload = Offload::new(device_blocks - own, RING_SLOTS, HostMemory::InPlace);
        Some(Extension { device_blocks: own, offload, spill: None, reads_ahead: options.prefetching() })
    }

    /// Blocks of the host tier that extend the device pool, and blocks of the disk below them; `None` if the longest
    /// sequence fits on the device, or there is no host tier. If the disk cannot be used, a note says why, and
    /// contexts end with the host.
    pub(crate) fn extend(&self) -> Option<Extension> {
        let Self { options, plan, demand, .. } = *self;
        let host_bytes = options.kv_tiers.as_ref()?.host_bytes?;
        let longest = longest_blocks(plan, self.max_rows, demand);
        if longest <= u64::from(self.device_blocks) {
            return None;
        }
        let most = if reads_one_buffer(options) { KvPool::max_blocks(self.gpu, plan) } else { u32::MAX };
        let most = self.max_blocks().min(most.into());
        let host_blocks = saturated((host_bytes / plan.block_bytes()).min(most));
        match self.onto_disk(host_bytes, host_blocks, longest) {
            Ok(Some(extension)) => return Some(extension),
            Ok(None) => {}
            Err(warning) => options.notes.tell(&Note::TierWarning { warning }),
        }
        (host_blocks > 0).then(|| self.extension(host_blocks, None))
    }

    fn extension(&self, host_blocks: u32, spill: Option<Arc<Spill>>) -> Extension {
        let reads_ahead = self.options.prefetching();
        Extension {
            device_blocks: self.device_blocks,
            offload: self.offload(host_blocks),
            spill,
            reads_ahead,
        }
    }

    /// Whether blocks on disk are possible with the policy: true without a policy, or if the policy can select among
    /// them.
    fn reaches_disk(&self) -> bool {
        selection(self.options).is_none_or(|selection| selection.selects_from_disk())
    }

    /// Maximum number of blocks beyond the device, including the null block if blocks are selected.
    fn max_blocks(&self) -> u64 {
        let Self { options, demand, .. } = *self;
        demand.tokens.div_ceil(u64::from(options.block_size))
            + u64::from(demand.sequences)
            + u64::from(options.sparse.is_some())
    }

    fn offload(&self, host_blocks: u32) -> Offload {
        let memory = match (self.options.host_tier_on_device, self.gpu.has_host_buffers()) {
            (true, _) => HostMemory::Device,
            (false, true) => HostMemory::Mapped,
            (false, false) => HostMemory::Staged,
        };
        Offload::new(host_blocks, RING_SLOTS, memory)
    }

    /// Returns the extension with blocks on disk; `None` without a disk, or if memory holds `longest` blocks. Kernels
    /// that select blocks cannot read files: with a policy, a part of the host's memory caches the selected blocks, or
    /// all of it if kernels cannot read host memory either.
    fn onto_disk(
        &self,
        host_bytes: u64,
        host_blocks: u32,
        longest: u64,
    ) -> Result<Option<Extension>, String> {
        let Self { options, gpu, config, plan, device_blocks, .. } = *self;
        let tiers = options.kv_tiers.as_ref().filter(|_| self.reaches_disk());
        let Some((tiers, disk)) = tiers.and_then(|tiers| Some((tiers, tiers.disk.as_ref()?))) else {
            return Ok(None);
        };
        let pool = PoolOptions::new(device_blocks).offload(Some(self.offload(host_blocks.max(1))));
        // A pool that cannot be divided is refused where it is made. Beside a policy nothing is resident.
        let Ok(resident) = KvPool::resident_blocks(gpu, config, plan, &pool) else { return Ok(None) };
        let resident = if options.sparse.is_some() { 0 } else { resident };
        if u64::from(resident) + u64::from(host_blocks) >= longest {
            return Ok(None);
        }
        let Some(one) = plan.spill_shape(1) else { return Ok(None) };
        let block_bytes = plan.block_bytes();
        let staging = self.staging_bytes(host_bytes)?;
        let left = saturated((host_bytes - staging.all) / block_bytes);
        let selects = options.sparse.is_some();
        let mut extension = self.extension(left, None);
        if selects {
            let cached = self.cached_blocks(left, longest);
            extension.reads_ahead = extension.reads_ahead.prefetch_cache_size(cached.max(1) as usize);
            extension.offload = self.offload(left - cached);
            if extension.offload.host_blocks < 2 || extension.offload.memory != HostMemory::Mapped {
                // The null block alone.
                extension.offload = self.offload(1).memory(HostMemory::Device);
            }
        }
        let host_blocks = extension.offload.host_blocks;
        let beyond = |blocks: u64| blocks.saturating_sub(u64::from(host_blocks));
        let capacity = disk.capacity_bytes / block_bytes;
        // One request may have the whole disk; for several, half of it stays with the prefixes.
        let blocks = beyond(self.max_blocks()).min(capacity / 2).max(beyond(longest)).min(capacity);
        if blocks == 0 {
            return Ok(None);
        }
        let shape = SpillShape { blocks: saturated(blocks), ..one };
        let spill = tiers.spill(shape, usize::try_from(staging.each).unwrap_or(usize::MAX));
        extension.spill = spill.map_err(|error| error_chain::joined(&error))?.map(Arc::new);
        Ok(Some(extension))
    }

    /// Capacity, in blocks, of the cache of blocks that a policy selects on disk, out of `left` blocks on the host: a quarter
    /// of the `longest` blocks that would then be on disk, if kernels can read the others on the host.
    fn cached_blocks(&self, left: u32, longest: u64) -> u32 {
        let most = match self.gpu.has_host_buffers() {
            true => left.min(saturated(longest.saturating_sub(u64::from(left)) / 3)),
            false => left,
        };
        let stated = self.options.sparse.as_ref().and_then(|sparse| sparse.policy.deployment().prefetch);
        stated.map_or(most, |stated| stated.cache_blocks.min(most))
    }

    /// Memory of the host tier that buffers transfers to and from the disk.
    fn staging_bytes(&self, host_bytes: u64) -> Result<Staging, String> {
        let Self { options, plan, max_rows, demand, .. } = *self;
        // Layers are alike; the last block that a sequence writes may be partial, and so may the first.
        let layer_bytes = plan.block_bytes() / plan.layout.tensors.len().max(1) as u64;
        let written =
            u64::from(max_rows.div_ceil(options.block_size)) + u64::from(demand.sequences.min(max_rows));
        let back = READBACKS * written * layer_bytes;
        let least = 3 * layer_bytes;
        let left = host_bytes.checked_sub(back).filter(|left| *left >= least);
        let Some(left) = left else {
            let needed_bytes = back + least;
            return Err(format!(
                "host tier of {host_bytes} bytes has no room for what is on its way to the disk: steps of {max_rows} \
                 tokens need {needed_bytes}"
            ));
        };
        let each = (host_bytes / STAGING_PARTS).max(layer_bytes).min(left / 3);
        Ok(Staging { each, all: back + 3 * each })
    }
}

/// Sizes of the host memory for blocks in transfer.
struct Staging {
    /// Bytes of one part.
    each: u64,
    /// Bytes of all parts, including the readback from the device.
    all: u64,
}

fn saturated(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Number of blocks that fit in half of the host's free memory, but no more than the sequences of a full queue
/// can lose.
pub(crate) fn swap_blocks(decoder: &Pipeline) -> u32 {
    let block_bytes = decoder.plan().block_bytes();
    let most = decoder.num_blocks().saturating_mul(MAX_SEQUENCES);
    let free = host_available().map_or(u64::MAX, |bytes| bytes / 2);
    saturated(free / block_bytes).min(most)
}

/// 0.9 of the free memory, which is the host's if the device shares it. wgpu does not report the memory of
/// discrete devices; there, pool sizes are tried and halved until one fits.
fn free_bytes(gpu: &Gpu) -> u64 {
    let shares = matches!(gpu.info().device_type, DeviceType::Cpu | DeviceType::IntegratedGpu);
    let free = if shares { host_available() } else { None };
    free.map_or(u64::MAX, |bytes| bytes / 10 * 9)
}

/// Free memory of the host in bytes: `MemAvailable` from Linux's /proc/meminfo, `None` elsewhere.
#[must_use]
pub fn host_available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use attn_kernels::kernel::KvDtype;
    use models::{DecoderConfig, KvOptions};

    use super::*;

    /// 4 sequences of 1,000 tokens in blocks of 16, in steps of 68 rows.
    fn blocks(name: &str, recycle: bool) -> u64 {
        let folder = [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures", name];
        let config = DecoderConfig::from_hf_dir(folder.iter().collect::<PathBuf>()).unwrap();
        let options = KvOptions::new(KvDtype::F16, 16).recycle(recycle);
        let plan = KvPlan::new(&config, options).unwrap();
        max_used_blocks(&plan, 68, Demand { sequences: 4, tokens: 4000, longest: 1000 })
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
