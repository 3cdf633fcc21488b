//! Buffers as dispatches bind them.

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::{Buf, Image, Raw, RawImage};
use crate::Params;

/// Buffers of a kernel by name, in the order of its bindings; [`bindings!`](crate::bindings) declares them.
pub trait Bindings {
    /// Parameter block of the same kernel.
    type Params: Params;

    /// Returns the bound buffers, with their names in the kernel.
    fn bound(self) -> BoundList;
}

/// Named bindings of a dispatch. As many as most kernels have are stored inline.
pub type BoundList = SmallVec<[(&'static str, Bound); 9]>;

/// A buffer of `T`s, the part of a buffer from an element on, or an image, as bound to a kernel.
#[derive(Debug)]
pub struct Bind<T> {
    bound: Bound,
    element: PhantomData<fn() -> T>,
}

/// A binding without its element type.
#[derive(Clone, Debug)]
pub struct Bound {
    pub(super) source: BoundMemory,
    /// Offset of the binding in its buffer, in bytes.
    pub(super) offset: u64,
}

/// Memory of a binding: a buffer or an image.
#[derive(Clone, Debug)]
pub(super) enum BoundMemory {
    Buffer(Raw),
    Image(RawImage),
}

impl Bound {
    /// Id of the bound memory and offset in it, which together distinguish the bindings of one device.
    pub(super) fn key(&self) -> [u64; 2] {
        let id = match &self.source {
            BoundMemory::Buffer(raw) => raw.id(),
            BoundMemory::Image(image) => image.id(),
        };
        [id, self.offset]
    }

    /// Returns the bound buffer; `None` for an image.
    pub(super) fn buffer(&self) -> Option<&Raw> {
        match &self.source {
            BoundMemory::Buffer(raw) => Some(raw),
            BoundMemory::Image(_) => None,
        }
    }
}

impl<T> Clone for Bind<T> {
    fn clone(&self) -> Self {
        Self { bound: self.bound.clone(), element: PhantomData }
    }
}

impl<T> Bind<T> {
    /// Binds `buffer` from `offset` bytes on, a multiple of the device's `min_storage_buffer_offset_alignment`.
    #[must_use]
    pub fn at(buffer: &Raw, offset: u64) -> Self {
        let source = BoundMemory::Buffer(buffer.clone());
        Self { bound: Bound { source, offset }, element: PhantomData }
    }

    /// Binds the same bytes as elements of another type.
    #[must_use]
    pub fn cast<U>(self) -> Bind<U> {
        Bind { bound: self.bound, element: PhantomData }
    }

    /// The binding without its element type.
    #[must_use]
    pub fn bound(self) -> Bound {
        self.bound
    }
}

impl<T> Buf<T> {
    /// Binds all elements.
    #[must_use]
    pub fn bind(&self) -> Bind<T> {
        Bind::at(self.raw(), 0)
    }

    /// Binds the elements from number `first` on, whose offset in bytes is a multiple of the device's
    /// `min_storage_buffer_offset_alignment`.
    #[must_use]
    pub fn bind_from(&self, first: usize) -> Bind<T> {
        Bind::at(self.raw(), (first * size_of::<T>()) as u64)
    }
}

impl<T> Image<T> {
    /// Binds all elements.
    #[must_use]
    pub fn bind(&self) -> Bind<T> {
        Bind {
            bound: Bound { source: BoundMemory::Image(self.raw().clone()), offset: 0 },
            element: PhantomData,
        }
    }
}

impl<T> From<&Buf<T>> for Bind<T> {
    fn from(buf: &Buf<T>) -> Self {
        buf.bind()
    }
}

impl<T> From<&Buf<T>> for Bound {
    fn from(buf: &Buf<T>) -> Self {
        buf.bind().bound()
    }
}

impl<T> From<Bind<T>> for Bound {
    fn from(bind: Bind<T>) -> Self {
        bind.bound
    }
}
