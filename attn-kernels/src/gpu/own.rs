//! Kernels inside the wgpu program of the caller: on its device, over its buffers, in its command encoders.

use super::matrices::matrix_size;
use super::pass::{Command, Dispatch, Pass};
use super::{Buf, Fault, Gpu, GpuError, GpuOptions, Raw, best_level, check_limits};
use bytemuck::Pod;
use std::sync::Arc;

/// Pass with its parameters and bind groups on the device. It can be encoded any number of times without allocations.
#[derive(Debug)]
pub struct Prepared {
    label: &'static str,
    steps: Vec<PreparedStep>,
}

#[derive(Debug)]
enum PreparedStep {
    Dispatch { dispatch: Dispatch, group: wgpu::BindGroup },
    Copy { from: Raw, from_at: u64, to: Raw, to_at: u64, bytes: u64 },
}

impl Gpu {
    /// Creates a `Gpu` for a device that the caller opened on `adapter`. Kernels use the features with which the
    /// device was opened. Errors that arrive outside a call go to the caller's own handler. Only level, checks and
    /// text of `options` are used.
    ///
    /// # Errors
    /// A device under the limits that every kernel needs: WebGPU's defaults; one that does not run a first kernel.
    pub fn of(
        adapter: &wgpu::Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
        options: &GpuOptions,
    ) -> Result<Self, GpuError> {
        let info = adapter.get_info();
        check_limits(&info.name, &device.limits())?;
        let size = matrix_size(adapter, options);
        let level = best_level(device.features(), size).min(options.level);
        Self::new(device, queue, info, level, options, Arc::new(Fault::default())).with_matrices(size)
    }

    /// Wraps a buffer of the caller for binding, as the whole elements of `T` that it holds.
    ///
    /// # Errors
    /// [`GpuError::Usage`] where it was not made for storage.
    pub fn share<T: Pod>(&self, buffer: &wgpu::Buffer) -> Result<Buf<T>, GpuError> {
        let (usage, needed) = (buffer.usage(), wgpu::BufferUsages::STORAGE);
        if !usage.contains(needed) {
            return Err(GpuError::Usage { usage, needed });
        }
        Ok(self.buf_of(buffer.clone()))
    }

    /// Puts a pass on the device, to be encoded by [`Prepared::encode`].
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] and [`GpuError::BufferTooLarge`] for its parameters, [`GpuError::Readback`] when it reads
    /// back: that is for the caller's encoder, [`GpuError::Compile`] for a kernel that the driver does not take, and what a
    /// kernel cannot bind, from [`GpuError::BindingTooLarge`] on.
    pub fn prepare(&self, pass: Pass) -> Result<Prepared, GpuError> {
        if !pass.reads.is_empty() {
            return Err(GpuError::Readback { reads: pass.reads.len() });
        }
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let params = self.raw_buffer("params", pass.params.bytes.len().max(256) as u64, usage)?;
        self.queue.write_buffer(params.wgpu(), 0, &pass.params.bytes);
        let compiled = pass.commands.iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) => Some(&dispatch.pipeline),
            _ => None,
        });
        compiled.into_iter().try_for_each(|pipeline| pipeline.wait())?;
        let steps = pass.commands.into_iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) => {
                let group = self.make_bind_group(&dispatch, &params);
                Some(group.map(|group| PreparedStep::Dispatch { dispatch, group }))
            }
            Command::Copy { from, from_at, to, to_at, bytes } => {
                Some(Ok(PreparedStep::Copy { from, from_at, to, to_at, bytes }))
            }
            // Submissions are the caller's.
            Command::Cut | Command::Hold | Command::Split => None,
        });
        Ok(Prepared { label: pass.label, steps: steps.collect::<Result<_, _>>()? })
    }
}

impl Prepared {
    /// Records the work after the commands that `encoder` already holds.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        let is_copy = |step: &PreparedStep| matches!(step, PreparedStep::Copy { .. });
        for run in self.steps.chunk_by(|a, b| is_copy(a) == is_copy(b)) {
            if !is_copy(&run[0]) {
                let descriptor =
                    wgpu::ComputePassDescriptor { label: Some(self.label), timestamp_writes: None };
                let mut compute = encoder.begin_compute_pass(&descriptor);
                run.iter().for_each(|step| step.dispatch(&mut compute));
                continue;
            }
            run.iter().for_each(|step| step.copy(encoder));
        }
    }
}

impl PreparedStep {
    fn dispatch(&self, compute: &mut wgpu::ComputePass<'_>) {
        if let Self::Dispatch { dispatch, group } = self {
            let [x, y, z] = dispatch.workgroups;
            let raw = dispatch.pipeline.raw().expect("it was waited for");
            compute.set_pipeline(raw);
            compute.set_bind_group(0, group, &[dispatch.params_at]);
            compute.dispatch_workgroups(x, y, z);
        }
    }

    fn copy(&self, encoder: &mut wgpu::CommandEncoder) {
        if let Self::Copy { from, from_at, to, to_at, bytes } = self {
            encoder.copy_buffer_to_buffer(from.wgpu(), *from_at, to.wgpu(), *to_at, *bytes);
        }
    }
}
