//! Weights that are kept in host memory, and are copied to the device layer by layer.
//!
//! Matrices of some layers are packed as ever, but into buffers of the host. The device has two slots, each as large as the
//! largest of these layers. While the layers before it compute, the next one arrives in the slot that is free: its blocks are
//! copied by a kernel of few workgroups that runs beside matrix products, portion by portion, so that kernels bind a slot as
//! they bind weights of the device, and results are the same bits.

mod allocator;
mod placement;
mod plane;
mod stream;

use attn_kernels::gpu::Buf;

pub(crate) use allocator::{PlaneWriter, WeightAllocator};
pub use placement::WeightPlacement;
pub(crate) use placement::{LayerOutline, SlotPlace, WeightOutline};
pub(crate) use plane::Plane;
pub(crate) use stream::WeightStream;

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
