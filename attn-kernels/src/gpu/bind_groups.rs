//! Cache of bind groups: a steady step makes none. Bindings of a dispatch are checked when their group is made.

use super::bind::{Bound, BoundMemory};
use super::pass::Dispatch;
use super::pipeline::BindGroupKey;
use super::{Gpu, GpuError, Raw};
use crate::{Access, WINDOW_BYTES};
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;

impl Gpu {
    pub(super) fn bind_group(&self, dispatch: &Dispatch, params: &Raw) -> Result<wgpu::BindGroup, GpuError> {
        let pipeline = &dispatch.pipeline;
        let mut key: SmallVec<[u64; 18]> = SmallVec::new();
        key.extend([pipeline.layout_id, params.id()]);
        for bind in &dispatch.bindings {
            key.extend(bind.key());
        }
        let mut cache = self.bind_groups.lock().expect("no holder of this lock panics");
        match cache.entry(BindGroupKey(key)) {
            Entry::Occupied(group) => Ok(group.get().clone()),
            Entry::Vacant(place) => Ok(place.insert(self.make_bind_group(dispatch, params)?).clone()),
        }
    }

    pub(super) fn make_bind_group(
        &self,
        dispatch: &Dispatch,
        params: &Raw,
    ) -> Result<wgpu::BindGroup, GpuError> {
        self.check_bindings(dispatch)?;
        self.made.fetch_add(1, Ordering::Relaxed);
        let pipeline = &dispatch.pipeline;
        let uniform = wgpu::BufferBinding {
            buffer: params.wgpu(),
            offset: 0,
            size: wgpu::BufferSize::new(pipeline.variant.kernel.params.bytes as u64),
        };
        let bound = dispatch.bindings.iter().zip(&pipeline.variant.bindings);
        let entries: SmallVec<[_; 9]> = std::iter::once(wgpu::BindingResource::Buffer(uniform))
            .chain(bound.map(|(bound, declared)| resource(bound, declared.access)))
            .zip(0..)
            .map(|(resource, binding)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        Ok(self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        }))
    }

    /// Refuses bindings that wgpu would not accept, and names the kernel and the binding.
    fn check_bindings(&self, dispatch: &Dispatch) -> Result<(), GpuError> {
        let limits = self.device.limits();
        let limit = limits.max_storage_buffer_binding_size;
        let align = u64::from(limits.min_storage_buffer_offset_alignment);
        let kernel = dispatch.pipeline.variant.kernel.name;
        let bound = || dispatch.bindings.iter().zip(&dispatch.pipeline.variant.bindings).zip(1_u32..);
        for ((bind, declared), binding) in bound() {
            let Some(raw) = bind.buffer() else { continue };
            let (offset, size) = (bind.offset, raw.bytes());
            if !offset.is_multiple_of(align) {
                return Err(GpuError::BindingOffset { kernel, binding, offset, align });
            }
            if offset >= size {
                return Err(GpuError::BindingPastEnd { kernel, binding, offset, size });
            }
            let bytes = size - offset;
            if declared.access == Access::Window {
                if bytes < u64::from(WINDOW_BYTES) {
                    return Err(GpuError::BindingPastEnd { kernel, binding, offset, size });
                }
                continue;
            }
            if bytes > limit {
                return Err(GpuError::BindingTooLarge { kernel, binding, bytes, limit });
            }
            if !bytes.is_multiple_of(4) {
                return Err(GpuError::BindingOdd { kernel, binding, bytes });
            }
            let mut others =
                bound().filter(|((other, _), _)| other.buffer().map(Raw::wgpu) == Some(raw.wgpu()));
            if declared.access == Access::Write
                && let Some((_, read)) = others.find(|((_, other), _)| other.access != Access::Write)
            {
                return Err(GpuError::BoundTwice { kernel, read, written: binding });
            }
        }
        Ok(())
    }

    /// Forgets cached bind groups, which keep the buffers they name alive.
    pub fn forget_bind_groups(&self) {
        self.bind_groups.lock().expect("no holder of this lock panics").clear();
    }
}

/// Converts a binding to wgpu's type.
fn resource(bound: &Bound, access: Access) -> wgpu::BindingResource<'_> {
    let window = (access == Access::Window).then_some(u64::from(WINDOW_BYTES));
    match &bound.source {
        BoundMemory::Image(image) => wgpu::BindingResource::TextureView(image.view()),
        BoundMemory::Buffer(raw) => wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: raw.wgpu(),
            offset: bound.offset,
            size: window.and_then(wgpu::BufferSize::new),
        }),
    }
}
