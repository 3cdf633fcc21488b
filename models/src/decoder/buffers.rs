//! Buffers that grow with the steps, and lists that are uploaded to them.

use std::ops::{Deref, DerefMut};

use attn_kernels::gpu::{Bind, Buf, Gpu};
use bytemuck::Pod;

use crate::ModelError;

/// A buffer that grows. Buffers of a decoder are replaced here and nowhere else, so that the device forgets all bind groups of
/// the old buffer.
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

    /// Grows the buffer to at least `len` elements. A buffer that grows loses its contents.
    pub(super) fn fit(&mut self, gpu: &Gpu, len: usize) -> Result<(), ModelError> {
        if self.buf.len() < len {
            self.buf = gpu.buffer(self.label, len.next_power_of_two())?;
            gpu.forget_bind_groups();
        }
        Ok(())
    }

    /// Uploads a list, and grows the buffer for it.
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

/// A buffer for each layer, if all layers are recorded at once; otherwise one buffer that all layers use in turn.
#[derive(Debug)]
pub(super) struct OfLayers<T>(Vec<GrowBuf<T>>);

impl<T: Pod> OfLayers<T> {
    /// Buffers of `len` elements for `layers` layers; `None` if layers use one buffer in turn.
    pub(super) fn new(
        gpu: &Gpu,
        label: &'static str,
        len: usize,
        layers: Option<usize>,
    ) -> Result<Self, ModelError> {
        let bufs = (0..layers.unwrap_or(1)).map(|_| GrowBuf::new(gpu, label, len));
        Ok(Self(bufs.collect::<Result<_, _>>()?))
    }

    /// Grows each buffer to at least `len` elements.
    pub(super) fn fit(&mut self, gpu: &Gpu, len: usize) -> Result<(), ModelError> {
        self.0.iter_mut().try_for_each(|buf| buf.fit(gpu, len))
    }

    /// Returns the buffer of a layer.
    pub(super) fn of(&self, layer: usize) -> &Buf<T> {
        &self.0[layer.min(self.0.len() - 1)]
    }
}

/// A list of a step: filled on the host, uploaded once, read by kernels.
#[derive(Debug)]
pub(super) struct StepList<T> {
    list: Vec<T>,
    buf: GrowBuf<T>,
}

impl<T: Pod> StepList<T> {
    /// An empty list with capacity for `len` elements on the device.
    pub(super) fn new(gpu: &Gpu, label: &'static str, len: usize) -> Result<Self, ModelError> {
        Ok(Self { list: Vec::new(), buf: GrowBuf::new(gpu, label, len)? })
    }

    /// Uploads the lists.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.buf.write(gpu, &self.list)
    }

    /// Returns the device's copy, as of the last upload.
    pub(super) fn on_device(&self) -> &Buf<T> {
        &self.buf
    }

    /// Binds the device's copy.
    pub(super) fn bind(&self) -> Bind<T> {
        self.buf.bind()
    }

    /// Binds the device's copy from element `first` on.
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
