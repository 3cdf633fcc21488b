//! Weights that are kept in host memory, and are copied to the device layer by layer.
//!
//! The matrices of these layers are packed as usual, but into buffers in host memory. The device has two slots, each as large
//! as the largest of these layers. While a layer computes from one slot, the next layer is copied into the other. A kernel of few
//! workgroups copies it, portion by portion, while matrix products run. Kernels bind a slot as they bind weights on the device,
//! so the results are the same bits.

mod allocator;
mod placement;
mod plane;
mod stream;
mod upload;

use attn_kernels::gpu::Buf;

pub(crate) use allocator::WeightAllocator;
pub use placement::WeightPlacement;
pub(crate) use placement::{LayerOutline, SlotPlace, WeightOutline};
pub(crate) use plane::Plane;
pub(crate) use stream::WeightStream;
pub(crate) use upload::{Columns, Planes};

/// Weights in host memory, which decoders share.
#[derive(Debug)]
pub(crate) struct HostWeights {
    placement: WeightPlacement,
    /// Bytes of the matrices of every layer.
    layer_bytes: Vec<u64>,
    /// Buffers of the layers on the host.
    buffers: Vec<Vec<Buf<[u32; 4]>>>,
}

impl HostWeights {
    /// Returns how the weights are divided between device and host.
    pub(crate) fn placement(&self) -> &WeightPlacement {
        &self.placement
    }
}
