//! Allocation of a pool: the layers' own buffers, the slots of a ring, and the blocks on the host.

use attn_kernels::gpu::{Buf, Gpu, GpuError};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::fetch_pages;
use attn_kernels::rows::KvWord;
use attn_kernels::split::{SplitCache, SplitPlanner};
use kvblock::CacheTensor;
use smallvec::SmallVec;

use super::offload::RingDemand;
use super::{CacheBuffers, Host, HostMemory, KvPlan, KvPool, Offload, PoolOptions, Ring, names, page_words};
use crate::{DecoderConfig, Mode, ModelError};

/// Returns the split planner of a model's attention to a cache of `shape` on a device; `rounded` says whether results may be
/// rounded to f16.
pub(crate) fn split_planner(
    gpu: &Gpu,
    config: &DecoderConfig,
    shape: &KvShape,
    rounded: bool,
) -> SplitPlanner {
    let cache = match (&config.latent, &config.compressed) {
        (Some(latent), _) => SplitCache::Latents(latent.kv_rank),
        (None, Some(_)) => SplitCache::Latents(config.head_dim),
        (None, None) => SplitCache::Heads(*shape),
    };
    SplitPlanner::new(&gpu.profile().rounded(rounded), cache, config.num_heads, config.context_length)
}

impl KvPool {
    /// Allocates up to `options.num_blocks` blocks. If memory is short, the pool is halved until it fits;
    /// [`num_blocks`](Self::num_blocks) is the number that was allocated.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when not even 2 blocks fit, [`ModelError::Mode`] and [`ModelError::Offload`] where blocks cannot
    /// lie on the host.
    pub fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        plan: KvPlan,
        options: PoolOptions,
    ) -> Result<Self, ModelError> {
        let shape = plan.shape(config);
        let mut num_blocks = options.num_blocks.min(Self::max_blocks(gpu, &plan)).max(2);
        loop {
            match Self::on_device(gpu, config, &plan, PoolOptions { num_blocks, ..options.clone() }) {
                Ok((tensors, ring)) => {
                    let device_blocks = num_blocks;
                    let host = ring
                        .map(|(ring, slots)| Self::host(gpu, &plan, &options, ring, slots))
                        .transpose()?;
                    if let (Some(host), Some(offload)) = (&host, options.offload) {
                        num_blocks = host.ring.resident() + offload.host_blocks + options.disk_blocks();
                    }
                    return Ok(Self { plan, shape, num_blocks, device_blocks, tensors, host });
                }
                Err(ModelError::Gpu(GpuError::OutOfMemory { .. })) if num_blocks > 2 => {
                    num_blocks = (num_blocks / 2).max(2);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how many blocks of a pool of `options` would be resident, if memory suffices.
    ///
    /// # Errors
    /// As [`new`](Self::new), but for memory.
    pub fn resident_blocks(
        gpu: &Gpu,
        config: &DecoderConfig,
        plan: &KvPlan,
        options: &PoolOptions,
    ) -> Result<u32, ModelError> {
        let num_blocks = options.num_blocks.min(Self::max_blocks(gpu, plan)).max(2);
        let ring = Self::divide(gpu, config, plan, &PoolOptions { num_blocks, ..options.clone() })?;
        Ok(ring.map_or(num_blocks, |ring| ring.resident()))
    }

    /// Allocates the layers' own buffers, and the ring with the buffers of its slots if there are blocks on the host.
    #[expect(clippy::type_complexity, reason = "taken apart by its only caller")]
    fn on_device(
        gpu: &Gpu,
        config: &DecoderConfig,
        plan: &KvPlan,
        options: PoolOptions,
    ) -> Result<(Vec<CacheBuffers>, Option<(Ring, Vec<CacheBuffers>)>), ModelError> {
        let buffer = |name: &str, words| gpu.buffer(name, words);
        let Some(ring) = Self::divide(gpu, config, plan, &options)? else {
            return Ok((Self::allocate(plan, options.num_blocks, buffer)?, None));
        };
        let tensors = Self::allocate(plan, ring.own(), buffer)?;
        // The layers are alike, and attended one after the other.
        let slot = |_| Self::allocate_tensor(plan, &plan.layout.tensors[0], ring.slot_blocks(), buffer);
        let slots = (0..ring.slots()).map(slot).collect::<Result<_, _>>()?;
        Ok((tensors, Some((ring, slots))))
    }

    /// Divides the pool if there are blocks on the host.
    fn divide(
        gpu: &Gpu,
        config: &DecoderConfig,
        plan: &KvPlan,
        options: &PoolOptions,
    ) -> Result<Option<Ring>, ModelError> {
        let PoolOptions { num_blocks: device_blocks, offload, selects, .. } = *options;
        let Some(offload) = offload else { return Ok(None) };
        let refuse = |lacks| Err(ModelError::Offload { lacks });
        if offload.memory == HostMemory::Mapped && !gpu.has_host_buffers() {
            return refuse("a device with mappable storage buffers, or staged copies");
        }
        if selects && offload.memory == HostMemory::Staged {
            return refuse("a device with mappable storage buffers beside a sparse policy");
        }
        Mode::HostKv.check(config)?;
        let [group] = &plan.layout.groups[..] else { return refuse("one group of layers") };
        if let Some(spill) = &options.spill {
            let (given, wanted) = (spill.shape(), plan.spill_shape(spill.shape().blocks));
            assert_eq!(Some(given), wanted, "a spill for the caches of another model");
        }
        let (in_place, segment) =
            (offload.memory == HostMemory::InPlace, Self::segment_blocks(gpu, plan, offload));
        if selects && !fetch_pages::serves(&plan.shape(config)) {
            return refuse("pages of whole 16-byte units beside a sparse policy");
        }
        let partition = split_planner(gpu, config, &plan.shape(config), false).fixed();
        let demand = RingDemand {
            device_blocks,
            host_blocks: offload.host_blocks,
            disk_blocks: options.disk_blocks(),
            layers: u32::try_from(plan.layout.tensors.len()).unwrap_or(u32::MAX),
            slots: offload.ring_slots.max(1),
            chunk: (partition / group.spec.block_size.get()).max(1),
            max_slot: Self::max_blocks(gpu, plan),
        };
        // What is attended where it lies leaves the ring partitions that lie in several buffers.
        let demand = RingDemand { max_slot: if in_place { demand.chunk } else { demand.max_slot }, ..demand };
        let ring = if selects { Ring::with_pages(demand) } else { Ring::new(demand) };
        match ring {
            Some(ring) if in_place => Ok(Some(ring.in_place(segment))),
            Some(ring) => Ok(Some(ring)),
            None => {
                Err(ModelError::DevicePool { blocks: device_blocks, needed: Ring::needed(demand, selects) })
            }
        }
    }

    fn host(
        gpu: &Gpu,
        plan: &KvPlan,
        options: &PoolOptions,
        ring: Ring,
        slots: Vec<CacheBuffers>,
    ) -> Result<Host, ModelError> {
        let offload = options.offload.expect("a ring is for blocks on the host");
        let host = |name: &str, words| match offload.memory {
            HostMemory::Mapped => gpu.host_buffer(name, words),
            HostMemory::Staged => gpu.upload_buffer(name, words),
            HostMemory::Device | HostMemory::InPlace => gpu.buffer(name, words),
        };
        let (blocks, segment_blocks) = (offload.host_blocks, Self::segment_blocks(gpu, plan, offload));
        let segments = (0..blocks.max(1)).step_by(segment_blocks as usize);
        let segments =
            segments.map(|first| Ok(Self::allocate(plan, (blocks - first).min(segment_blocks), host)?));
        let segments = segments.collect::<Result<Vec<_>, ModelError>>()?;
        let spill = options.spill.clone();
        let shown =
            spill.as_ref().filter(|_| options.selects).map_or(0, |spill| blocks + spill.shape().blocks);
        let board = (0..shown).step_by(segment_blocks as usize).map(|first| {
            let blocks = (shown - first).min(segment_blocks) as usize;
            gpu.buffer("board", blocks * segments[0][0].words)
        });
        let board = board.collect::<Result<_, _>>()?;
        Ok(Host { ring, segments, segment_blocks, memory: offload.memory, slots, spill, board })
    }

    /// Returns the number of blocks of one buffer on the host.
    fn segment_blocks(gpu: &Gpu, plan: &KvPlan, offload: Offload) -> u32 {
        Self::max_blocks(gpu, plan).min(offload.buffer_blocks).max(1)
    }

    fn allocate(
        plan: &KvPlan,
        num_blocks: u32,
        buffer: impl Fn(&str, usize) -> Result<Buf<KvWord>, GpuError>,
    ) -> Result<Vec<CacheBuffers>, GpuError> {
        let tensors = plan.layout.tensors.iter();
        tensors.map(|tensor| Self::allocate_tensor(plan, tensor, num_blocks, &buffer)).collect()
    }

    fn allocate_tensor(
        plan: &KvPlan,
        tensor: &CacheTensor,
        num_blocks: u32,
        buffer: impl Fn(&str, usize) -> Result<Buf<KvWord>, GpuError>,
    ) -> Result<CacheBuffers, GpuError> {
        // A place that only pads a group needs no memory.
        let Some(first) = tensor.layers.first() else {
            return Ok(CacheBuffers { buffers: SmallVec::new(), words: 0 });
        };
        let names = names(&plan.caches[*first].spec);
        let words = page_words(tensor.page_bytes, names);
        let buffers = names.iter().map(|name| buffer(name, num_blocks as usize * words));
        Ok(CacheBuffers { buffers: buffers.collect::<Result<_, GpuError>>()?, words })
    }
}
