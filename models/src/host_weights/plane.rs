//! Planes of matrices, on the device or on the host.

use attn_kernels::gpu::{Bind, Buf, Image};

use super::{SlotPlace, WeightStream};

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

impl<T> Plane<T> {
    /// Whether kernels read the plane as an image.
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
