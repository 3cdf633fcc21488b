//! Weights that are kept in host memory, and are copied to the device layer by layer.
//!
//! Matrices of some layers are packed as ever, but into buffers of the host. The device has two slots, each as large as the
//! largest of these layers. While the layers before it compute, the next one arrives in the slot that is free: its blocks are
//! copied by a kernel of few workgroups that runs beside matrix products, portion by portion, so that kernels bind a slot as
//! they bind weights of the device, and results are the same bits.

mod allocator;
mod placement;
mod stream;

use attn_kernels::gpu::{Bind, Buf, Image};

pub(crate) use allocator::{HostWeights, PlaneWriter, WeightAllocator};
pub use placement::WeightPlacement;
pub(crate) use placement::{LayerOutline, WeightOutline};
pub(crate) use stream::WeightStream;

/// Plane of a matrix.
#[derive(Clone, Debug)]
pub(crate) enum Plane<T> {
    /// On the device.
    Device(Buf<T>),
    /// On the device as an image, for kernels of software drivers.
    Image(Image<T>),
    /// In host memory: kernels find it in a slot while its layer is there.
    Host(SlotPlace),
}

/// Address of a plane in a slot, and in the buffers of its layer on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotPlace {
    slot: u32,
    /// Index of the buffer in the slot.
    buffer: u32,
    /// Offset in units of 16 bytes.
    quad: u32,
}

impl<T> Plane<T> {
    /// Whether kernels read it as an image.
    pub(crate) fn is_image(&self) -> bool {
        matches!(self, Self::Image(_))
    }

    /// Returns the binding of the plane.
    ///
    /// # Panics
    /// When it lies on the host and there is no `stream`.
    pub(crate) fn bind(&self, stream: Option<&WeightStream>) -> Bind<T> {
        match (self, stream) {
            (Self::Device(buf), _) => buf.bind(),
            (Self::Image(image), _) => image.bind(),
            (Self::Host(place), Some(stream)) => stream.bind(*place).cast(),
            (Self::Host(place), None) => panic!("a plane at {place:?} of a decoder without slots"),
        }
    }
}
