//! Buffers as long as the steps so far needed.

use std::ops::Deref;

use attn_kernels::gpu::{Buf, Gpu};
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
