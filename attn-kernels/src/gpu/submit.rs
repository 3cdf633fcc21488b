//! Encodes a pass, submits it, and hands back what it reads.

use super::pass::{Command, Dispatch, Pass, Read};
use super::pipeline::BindGroupKey;
use super::timing::{QUERIES, Timed, Timing, timings};
use super::{Gpu, GpuError, Raw};
use bytemuck::Pod;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// What submissions reuse: the parameter block, staging buffers that nothing reads any more, the query set.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    params: Option<Raw>,
    staging: Vec<Raw>,
    pub(super) queries: Option<wgpu::QuerySet>,
    pub(super) timed: Timed,
}

/// Work on its way.
#[derive(Debug)]
#[must_use = "errors and readbacks arrive with wait()"]
pub struct Pending<'g> {
    gpu: &'g Gpu,
    submission: Submission,
}

/// Work on its way, to be [collected](Gpu::collect) later from the device that it was submitted to.
#[derive(Debug)]
#[must_use = "errors and readbacks arrive with Gpu::collect"]
pub struct Submission {
    index: Option<wgpu::SubmissionIndex>,
    staging: Option<Raw>,
    spans: Vec<(usize, usize)>,
    timed: Vec<&'static str>,
    timings_at: u64,
}

/// What a finished pass read.
#[derive(Debug)]
pub struct Outcome {
    bytes: Vec<u8>,
    spans: Vec<(usize, usize)>,
    /// One entry for whatever timing was asked for, in order.
    pub timings: Vec<Timing>,
}

impl Outcome {
    /// The data of one readback.
    ///
    /// # Panics
    /// When `read` belongs to another pass.
    #[must_use]
    pub fn get<T: Pod>(&self, read: Read<T>) -> Vec<T> {
        let (start, end) = self.spans[read.index];
        bytemuck::pod_collect_to_vec(&self.bytes[start..end])
    }
}

impl Gpu {
    /// Encodes and submits a pass.
    ///
    /// # Errors
    /// [`GpuError::Lost`], [`GpuError::OutOfMemory`] for staging, [`GpuError::Validation`] for a bug in the caller.
    pub fn submit(&self, pass: Pass) -> Result<Pending<'_>, GpuError> {
        self.fault()?;
        let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
        let params = self.params_buffer(&mut scratch, &pass)?;
        let timed = self.timed(&mut scratch, &pass);
        let which = scratch.timed;
        let queries = scratch.queries.clone().filter(|_| !timed.is_empty());

        let mut spans = Vec::with_capacity(pass.reads.len());
        let mut staged = 0;
        for (_, range) in &pass.reads {
            let bytes = usize::try_from(range.end - range.start).expect("a readback fits in memory");
            spans.push((staged, staged + bytes));
            staged += bytes.next_multiple_of(8);
        }
        let timings_at = staged as u64;
        let staged = timings_at + timed.len() as u64 * 16;
        let staging = if staged == 0 { None } else { Some(self.staging(&mut scratch, staged)?) };

        let mut encoder = self.encode(&pass, params.as_ref(), queries.as_ref().map(|set| (set, which)));
        for ((raw, range), (at, _)) in pass.reads.iter().zip(&spans) {
            let to = &staging.as_ref().expect("reads have staging").buffer;
            encoder.copy_buffer_to_buffer(
                &raw.buffer,
                range.start,
                to,
                *at as u64,
                (range.end - range.start).next_multiple_of(4),
            );
        }
        if let (Some(queries), Some(staging)) = (&queries, &staging) {
            self.resolve(&mut encoder, queries, staging, timings_at, timed.len())?;
        }
        let index = self.queue.submit([encoder.finish()]);
        // Not before: another thread's parameters would take the place of these.
        drop(scratch);
        let submission = Submission { index: Some(index), staging, spans, timed, timings_at };
        Ok(Pending { gpu: self, submission })
    }

    fn encode(
        &self,
        pass: &Pass,
        params: Option<&Raw>,
        queries: Option<(&wgpu::QuerySet, Timed)>,
    ) -> wgpu::CommandEncoder {
        let descriptor = wgpu::CommandEncoderDescriptor { label: Some(pass.label) };
        let mut encoder = self.device.create_command_encoder(&descriptor);
        let mut commands = pass.commands.iter().peekable();
        let mut query = 0;
        while let Some(command) = commands.next() {
            match command {
                Command::Copy { from, from_at, to, to_at, bytes } => {
                    encoder.copy_buffer_to_buffer(&from.buffer, *from_at, &to.buffer, *to_at, *bytes);
                }
                Command::Cut => {
                    let done =
                        std::mem::replace(&mut encoder, self.device.create_command_encoder(&descriptor));
                    self.queue.submit([done.finish()]);
                }
                Command::Dispatch(first) => {
                    let params = params.expect("a pass with dispatches has parameters");
                    let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                        label: Some(pass.label),
                        timestamp_writes: None,
                    });
                    let whole = queries.filter(|(_, which)| query + 2 <= QUERIES && which.holds_runs());
                    if let Some((set, _)) = whole {
                        compute.write_timestamp(set, query);
                    }
                    let mut next = Some(first);
                    while let Some(dispatch) = next {
                        let stamped =
                            queries.filter(|(_, which)| query + 2 <= QUERIES && which.holds(dispatch));
                        if let Some((set, _)) = stamped {
                            compute.write_timestamp(set, query);
                            self.dispatch(&mut compute, dispatch, params);
                            compute.write_timestamp(set, query + 1);
                            query += 2;
                        } else {
                            self.dispatch(&mut compute, dispatch, params);
                        }
                        next = commands
                            .next_if(|c| matches!(c, Command::Dispatch(_)))
                            .and_then(|c| if let Command::Dispatch(d) = c { Some(d) } else { None });
                    }
                    if let Some((set, _)) = whole {
                        compute.write_timestamp(set, query + 1);
                        query += 2;
                    }
                }
            }
        }
        encoder
    }

    fn dispatch(&self, compute: &mut wgpu::ComputePass<'_>, dispatch: &Dispatch, params: &Raw) {
        compute.set_pipeline(&dispatch.pipeline.raw);
        let group = self.bind_group(dispatch, params);
        compute.set_bind_group(0, &group, &[dispatch.params_at]);
        let [x, y, z] = dispatch.workgroups;
        compute.dispatch_workgroups(x, y, z);
    }

    fn bind_group(&self, dispatch: &Dispatch, params: &Raw) -> wgpu::BindGroup {
        let pipeline = &dispatch.pipeline;
        let mut key: SmallVec<[u64; 18]> = SmallVec::new();
        key.extend([pipeline.layout_id, params.id]);
        for bind in &dispatch.bindings {
            key.extend([bind.raw.id, bind.offset]);
        }
        let mut cache = self.bind_groups.lock().expect("no holder of this lock panics");
        cache.entry(BindGroupKey(key)).or_insert_with(|| self.make_bind_group(dispatch, params)).clone()
    }

    pub(super) fn make_bind_group(&self, dispatch: &Dispatch, params: &Raw) -> wgpu::BindGroup {
        self.made.fetch_add(1, Ordering::Relaxed);
        let pipeline = &dispatch.pipeline;
        let uniform = wgpu::BufferBinding {
            buffer: &params.buffer,
            offset: 0,
            size: wgpu::BufferSize::new(pipeline.variant.kernel.params_bytes as u64),
        };
        let storage = dispatch.bindings.iter().map(|b| wgpu::BufferBinding {
            buffer: &b.raw.buffer,
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

    fn params_buffer(&self, scratch: &mut Scratch, pass: &Pass) -> Result<Option<Raw>, GpuError> {
        if pass.params.is_empty() {
            return Ok(None);
        }
        let bytes = pass.params.len() as u64;
        if scratch.params.as_ref().is_none_or(|p| p.bytes() < bytes) {
            let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
            let bytes = bytes.next_power_of_two().max(64 << 10);
            scratch.params = Some(self.raw_buffer("params", bytes, usage)?);
            self.forget_bind_groups();
        }
        let params = scratch.params.clone().expect("made above");
        self.queue.write_buffer(&params.buffer, 0, &pass.params);
        Ok(Some(params))
    }

    fn staging(&self, scratch: &mut Scratch, bytes: u64) -> Result<Raw, GpuError> {
        let fits = |raw: &Raw| (bytes..=bytes.saturating_mul(4).max(1 << 16)).contains(&raw.bytes());
        if let Some(position) = scratch.staging.iter().position(fits) {
            return Ok(scratch.staging.swap_remove(position));
        }
        scratch.staging.clear();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.raw_buffer("staging", bytes.next_power_of_two().max(4096), usage)
    }
}

impl Pending<'_> {
    /// Waits for the work and returns what it read.
    ///
    /// # Errors
    /// [`GpuError::Lost`] when the device went away, [`GpuError::Validation`] for a bug in the caller.
    pub fn wait(self) -> Result<Outcome, GpuError> {
        self.gpu.collect(self.submission)
    }

    /// Lets go of the device: later submissions may come before the wait.
    pub fn defer(self) -> Submission {
        self.submission
    }
}

impl Gpu {
    /// Waits for work of this device and returns what it read.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn collect(&self, submission: Submission) -> Result<Outcome, GpuError> {
        let Submission { index, staging, spans, timed, timings_at } = submission;
        let Some(staging) = staging else {
            self.poll(index)?;
            return Ok(Outcome { bytes: Vec::new(), spans, timings: Vec::new() });
        };
        let (sender, receiver) = mpsc::channel();
        staging.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver is gone only when the wait below has already failed.
            let _ = sender.send(result);
        });
        self.poll(index)?;
        let mapped =
            receiver.recv().map_err(|_| GpuError::Lost { message: "mapping never finished".into() })?;
        mapped.map_err(|e| GpuError::Lost { message: e.to_string() })?;
        let view = staging
            .buffer
            .get_mapped_range(..)
            .map_err(|e| GpuError::Validation { message: e.to_string() })?;
        let bytes = view.to_vec();
        drop(view);
        staging.buffer.unmap();
        let timings = timings(&bytes, &timed, timings_at, self.queue.get_timestamp_period());
        self.scratch.lock().expect("no holder of this lock panics").staging.push(staging);
        Ok(Outcome { bytes, spans, timings })
    }
}

impl Gpu {
    fn poll(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<(), GpuError> {
        let polled = self.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        self.fault()?;
        polled.map(|_| ()).map_err(|e| GpuError::Lost { message: e.to_string() })
    }
}
