//! Bind groups, cached: a steady step makes none.

use super::pass::Dispatch;
use super::pipeline::BindGroupKey;
use super::{Gpu, Raw};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

impl Gpu {
    pub(super) fn bind_group(&self, dispatch: &Dispatch, params: &Raw) -> wgpu::BindGroup {
        let pipeline = &dispatch.pipeline;
        let mut key: SmallVec<[u64; 18]> = SmallVec::new();
        key.extend([pipeline.layout_id, params.id()]);
        for bind in &dispatch.bindings {
            key.extend([bind.raw.id(), bind.offset]);
        }
        let mut cache = self.bind_groups.lock().expect("no holder of this lock panics");
        cache.entry(BindGroupKey(key)).or_insert_with(|| self.make_bind_group(dispatch, params)).clone()
    }

    pub(super) fn make_bind_group(&self, dispatch: &Dispatch, params: &Raw) -> wgpu::BindGroup {
        self.made.fetch_add(1, Ordering::Relaxed);
        let pipeline = &dispatch.pipeline;
        let uniform = wgpu::BufferBinding {
            buffer: params.wgpu(),
            offset: 0,
            size: wgpu::BufferSize::new(pipeline.variant.kernel.params_bytes as u64),
        };
        let storage = dispatch.bindings.iter().map(|b| wgpu::BufferBinding {
            buffer: b.raw.wgpu(),
            offset: b.offset,
            size: None,
        });
        let entries: SmallVec<[_; 9]> = std::iter::once(uniform)
            .chain(storage)
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(buffer),
            })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        })
    }

    /// Forgets cached bind groups, which keep the buffers they name alive.
    pub fn forget_bind_groups(&self) {
        self.bind_groups.lock().expect("no holder of this lock panics").clear();
    }
}
