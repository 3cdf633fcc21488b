//! Buffers as long as the steps so far needed, and lists that are brought to them.

use std::ops::{Deref, DerefMut};

use attn_kernels::gpu::{Bind, Buf, Gpu};
use bytemuck::Pod;

use crate::ModelError;

/// A buffer that grows. This is the one place where a buffer of a decoder is replaced, and so the one that has the device
/// forget the bind groups that name the old one.
#[derive(Debug)]
pub(super) struct GrowBuf<T> {
    label: &'static str,
    buf: Buf<T>,
}

impl<T: Pod> GrowBuf<T> {
    /// A buffer of `len` elements.
    pub(super) fn new(gpu: &Gpu, label: &'static str, len: usize) -> Result<Self, ModelError> {
        Ok(Self { label, buf: gpu.buffer(label, len)? })
    }

    /// Makes room for `len` elements. A buffer that grows loses its contents.
    pub(super) fn fit(&mut self, gpu: &Gpu, len: usize) -> Result<(), ModelError> {
        if self.buf.len() < len {
            self.buf = gpu.buffer(self.label, len.next_power_of_two())?;
            gpu.forget_bind_groups();
        }
        Ok(())
    }

    /// Brings a list to the device, with room for it.
    pub(super) fn write(&mut self, gpu: &Gpu, list: &[T]) -> Result<(), ModelError> {
        self.fit(gpu, list.len())?;
        gpu.write(&self.buf, 0, list);
        Ok(())
    }
}

impl<T> Deref for GrowBuf<T> {
    type Target = Buf<T>;

    fn deref(&self) -> &Buf<T> {
        &self.buf
    }
}

/// A buffer of each layer, where all layers are recorded at once; else one, of the layer at hand.
#[derive(Debug)]
pub(super) struct OfLayers<T>(Vec<GrowBuf<T>>);

impl<T: Pod> OfLayers<T> {
    /// Buffers of `len` elements for `layers` layers; `None` for one layer after the other.
    pub(super) fn new(
        gpu: &Gpu,
        label: &'static str,
        len: usize,
        layers: Option<usize>,
    ) -> Result<Self, ModelError> {
        let bufs = (0..layers.unwrap_or(1)).map(|_| GrowBuf::new(gpu, label, len));
        Ok(Self(bufs.collect::<Result<_, _>>()?))
    }

    /// Makes room for `len` elements in each.
    pub(super) fn fit(&mut self, gpu: &Gpu, len: usize) -> Result<(), ModelError> {
        self.0.iter_mut().try_for_each(|buf| buf.fit(gpu, len))
    }

    /// Returns the buffer of a layer.
    pub(super) fn of(&self, layer: usize) -> &Buf<T> {
        &self.0[layer.min(self.0.len() - 1)]
    }
}

/// A list of a step: laid out on the host, uploaded once, read by kernels.
#[derive(Debug)]
pub(super) struct StepList<T> {
    list: Vec<T>,
    buf: GrowBuf<T>,
}

impl<T: Pod> StepList<T> {
    /// An empty list with room for `len` elements on the device.
    pub(super) fn new(gpu: &Gpu, label: &'static str, len: usize) -> Result<Self, ModelError> {
        Ok(Self { list: Vec::new(), buf: GrowBuf::new(gpu, label, len)? })
    }

    /// Brings the list to the device.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.buf.write(gpu, &self.list)
    }

    /// Returns the copy on the device, as of the last upload.
    pub(super) fn on_device(&self) -> &Buf<T> {
        &self.buf
    }

    /// Binds the copy on the device.
    pub(super) fn bind(&self) -> Bind<T> {
        self.buf.bind()
    }

    /// Binds the copy on the device from element `first` on.
    pub(super) fn bind_from(&self, first: usize) -> Bind<T> {
        self.buf.bind_from(first)
    }
}

impl<T> Deref for StepList<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.list
    }
}

impl<T> DerefMut for StepList<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.list
    }
}
