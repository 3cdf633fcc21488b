//! The paged KV cache on the device.

mod plan;

use attn_kernels::gpu::{Buf, Gpu, GpuError};
use attn_kernels::kernel::KvShape;
use kvblock::{KvCacheSpec, PageLayout};
use smallvec::SmallVec;

pub use self::plan::{CachePart, KvOptions, KvPlan, LayerCache};
use crate::{DecoderConfig, ModelError};

/// The buffers of a [`KvPlan`], `num_blocks` pages each. Block ids are of all groups together: a block belongs to one
/// group at a time, and its page in a buffer to the layer of that group.
#[derive(Debug)]
pub struct KvPool {
    plan: KvPlan,
    shape: KvShape,
    num_blocks: u32,
    tensors: Vec<Tensor>,
}

/// One buffer of latents, or one of keys and one of values.
#[derive(Debug)]
struct Tensor {
    buffers: SmallVec<[Buf<u32>; 2]>,
    /// Words of a block in each buffer.
    words: usize,
}

impl KvPool {
    /// Allocates up to `num_blocks` blocks. When memory is short the pool is halved until it fits; the number that was
    /// had is [`num_blocks`](Self::num_blocks).
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when not even 2 blocks fit.
    pub fn new(gpu: &Gpu, config: &DecoderConfig, plan: KvPlan, num_blocks: u32) -> Result<Self, ModelError> {
        let shape = plan.shape(config);
        let mut num_blocks = num_blocks.min(Self::most_blocks(gpu, &plan)).max(2);
        loop {
            match Self::allocate(gpu, &plan, num_blocks) {
                Ok(tensors) => return Ok(Self { plan, shape, num_blocks, tensors }),
                Err(GpuError::OutOfMemory { .. }) if num_blocks > 2 => num_blocks = (num_blocks / 2).max(2),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn allocate(gpu: &Gpu, plan: &KvPlan, num_blocks: u32) -> Result<Vec<Tensor>, GpuError> {
        let tensor = |tensor: &kvblock::CacheTensor| {
            // A place that only pads a group needs no memory.
            let Some(first) = tensor.layers.first() else {
                return Ok(Tensor { buffers: SmallVec::new(), words: 0 });
            };
            let names = names(&plan.caches[*first].spec);
            let words = page_words(tensor.page_bytes, names);
            let buffers = names.iter().map(|name| gpu.buffer(name, num_blocks as usize * words));
            Ok(Tensor { buffers: buffers.collect::<Result<_, GpuError>>()?, words })
        };
        plan.layout.tensors.iter().map(tensor).collect()
    }

    /// Blocks that one binding of the device can hold.
    #[must_use]
    pub fn most_blocks(gpu: &Gpu, plan: &KvPlan) -> u32 {
        let tensors = plan.layout.tensors.iter().filter_map(|tensor| {
            let names = names(&plan.caches[*tensor.layers.first()?].spec);
            Some(page_words(tensor.page_bytes, names) as u64 * 4)
        });
        let blocks = tensors.max().map_or(u64::MAX, |bytes| gpu.max_binding_bytes() / bytes);
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Which caches there are.
    #[must_use]
    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    /// Shape of the keys and of the values of attention.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Blocks of the pool, the null block included.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// K and V of one layer.
    #[must_use]
    pub fn layer(&self, layer: usize) -> (&Buf<u32>, &Buf<u32>) {
        let cache = self.plan.cache(layer, CachePart::KeyValue).expect("a layer with keys and values");
        let buffers = &self.tensors[cache.tensor].buffers;
        (&buffers[0], &buffers[1])
    }

    /// Group of a layer's keys and values.
    #[must_use]
    pub fn group(&self, layer: usize) -> usize {
        self.plan.cache(layer, CachePart::KeyValue).expect("a layer with keys and values").group
    }

    /// The buffer of a cache that has one.
    ///
    /// # Panics
    /// When the layer has no such cache.
    #[must_use]
    pub fn buffer(&self, layer: usize, part: CachePart) -> &Buf<u32> {
        let cache = self.plan.cache(layer, part).expect("a cache of this part");
        &self.tensors[cache.tensor].buffers[0]
    }

    /// Every buffer, with the words that a block takes in it.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (&Buf<u32>, usize)> {
        self.tensors.iter().flat_map(|tensor| tensor.buffers.iter().map(|buffer| (buffer, tensor.words)))
    }
}

/// The buffers that pages of a spec are split into.
fn names(spec: &KvCacheSpec) -> &'static [&'static str] {
    match spec.layout {
        PageLayout::KeyValue { .. } => &["k_cache", "v_cache"],
        PageLayout::Latent { .. } => &["latent_cache"],
    }
}

fn page_words(page_bytes: u64, names: &[&str]) -> usize {
    usize::try_from(page_bytes).expect("pages fit in memory") / 4 / names.len()
}
