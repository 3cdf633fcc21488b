//! Sizes of the KV pool: what the demand can use, and what memory allows.

use attn_kernels::gpu::Gpu;
use attn_kernels::gpu::wgpu::DeviceType;
use kvblock::{KvCacheGroup, LengthLimits};
use models::{Decoder, HostMemory, KvPlan, KvPool, Offload};

use crate::error::Error;
use crate::options::{Demand, EngineOptions, MAX_SEQUENCES};

/// Slots of the ring through which blocks on the host pass: one receives blocks while those of the other are attended.
const RING_SLOTS: u32 = 2;

/// Size of the KV pool in blocks: as given, or what the requests can use and memory allows.
pub(crate) fn num_blocks(
    options: &EngineOptions,
    gpu: &Gpu,
    plan: &KvPlan,
    max_used_blocks: u64,
) -> Result<u32, Error> {
    if let Some(blocks) = options.kv_blocks {
        return Ok(blocks);
    }
    let block_bytes = plan.block_bytes();
    let most = u64::from(KvPool::max_blocks(gpu, plan));
    let (budget_bytes, wanted) = match options.kv_memory {
        Some(bytes) => (bytes, most),
        None => (free_bytes(gpu), max_used_blocks),
    };
    let blocks = (budget_bytes / block_bytes).min(most).min(wanted);
    if blocks < 2 {
        return Err(Error::KvMemory { budget_bytes, blocks, block_bytes });
    }
    Ok(u32::try_from(blocks).unwrap_or(u32::MAX))
}

/// Maximum number of blocks, including the null block, that sequences use in steps of `max_rows` rows: in
/// groups with windows or chunks, as many as these hold; in other groups, as many as all tokens fill; and in
/// every group one more per sequence, whose last block is partial.
pub(crate) fn max_used_blocks(plan: &KvPlan, max_rows: u32, demand: Demand) -> u64 {
    let max_model_len = u32::try_from(demand.longest).unwrap_or(u32::MAX);
    let limits = LengthLimits::new(max_model_len).max_batched_tokens(max_rows);
    let seqs = u64::from(demand.sequences);
    let of_group = |group: &KvCacheGroup| {
        let all = demand.tokens.div_ceil(u64::from(group.spec.block_size.get())).saturating_add(seqs);
        group.spec.admission_cap(limits).map_or(all, |held| all.min(u64::from(held) * seqs))
    };
    plan.layout.groups.iter().map(of_group).fold(1, u64::saturating_add)
}

/// Blocks of the host tier that extend the device pool if the longest sequence does not fit there; `None` if
/// it fits.
pub(crate) fn offload(
    options: &EngineOptions,
    plan: &KvPlan,
    device_blocks: u32,
    demand: Demand,
    gpu: &Gpu,
) -> Option<Offload> {
    let host_bytes = options.kv_tiers.as_ref()?.host_bytes?;
    let size = u64::from(options.block_size);
    // One block is the null block.
    if demand.longest.div_ceil(size) < u64::from(device_blocks) {
        return None;
    }
    // The null block is one more; it lies on the host if blocks are selected.
    let most =
        demand.tokens.div_ceil(size) + u64::from(demand.sequences) + u64::from(options.sparse.is_some());
    let host_blocks = u32::try_from((host_bytes / plan.block_bytes()).min(most)).unwrap_or(u32::MAX);
    let memory = if gpu.has_host_buffers() { HostMemory::Mapped } else { HostMemory::Staged };
    (host_blocks > 0).then_some(Offload::new(host_blocks, RING_SLOTS, memory))
}

/// Number of blocks that fit in half of the host's free memory, but no more than the sequences of a full queue
/// can lose.
pub(crate) fn swap_blocks(decoder: &Decoder) -> u32 {
    let block_bytes = decoder.kv().plan().block_bytes();
    let most = decoder.kv().num_blocks().saturating_mul(MAX_SEQUENCES);
    let free = host_available().map_or(u64::MAX, |bytes| bytes / 2);
    u32::try_from(free / block_bytes).unwrap_or(u32::MAX).min(most)
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
