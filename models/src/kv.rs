//! The paged KV cache on the device: one K and one V buffer a layer.

use attn_kernels::gpu::{Buf, Gpu, GpuError};
use attn_kernels::kernel::KvShape;

use crate::ModelError;

/// K and V of every layer, `num_blocks` blocks each.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    num_blocks: u32,
    layers: Vec<Layer>,
}

/// K and V of one layer.
type Layer = (Buf<u32>, Buf<u32>);

impl KvPool {
    /// Allocates up to `num_blocks` blocks a layer. When memory is short the pool is halved until it fits; the
    /// number that was had is [`num_blocks`](Self::num_blocks).
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when not even 2 blocks fit.
    pub fn new(gpu: &Gpu, shape: KvShape, num_layers: u32, num_blocks: u32) -> Result<Self, ModelError> {
        let mut num_blocks = num_blocks.min(Self::most_blocks(gpu, &shape)).max(2);
        loop {
            match Self::allocate(gpu, &shape, num_layers, num_blocks) {
                Ok(layers) => return Ok(Self { shape, num_blocks, layers }),
                Err(GpuError::OutOfMemory { .. }) if num_blocks > 2 => num_blocks = (num_blocks / 2).max(2),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn allocate(
        gpu: &Gpu,
        shape: &KvShape,
        num_layers: u32,
        num_blocks: u32,
    ) -> Result<Vec<Layer>, GpuError> {
        let words = num_blocks as usize * shape.block_bytes() / 4;
        (0..num_layers).map(|_| Ok((gpu.buffer("k_cache", words)?, gpu.buffer("v_cache", words)?))).collect()
    }

    /// Blocks that one binding of the device can hold.
    #[must_use]
    pub fn most_blocks(gpu: &Gpu, shape: &KvShape) -> u32 {
        let blocks = gpu.max_binding_bytes() / shape.block_bytes() as u64;
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Bytes that one block takes over all layers.
    #[must_use]
    pub fn block_bytes(shape: &KvShape, num_layers: u32) -> u64 {
        2 * u64::from(num_layers) * shape.block_bytes() as u64
    }

    /// Shape of each buffer.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Blocks a layer.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// K and V of one layer.
    #[must_use]
    pub fn layer(&self, layer: usize) -> (&Buf<u32>, &Buf<u32>) {
        let (k, v) = &self.layers[layer];
        (k, v)
    }
}
