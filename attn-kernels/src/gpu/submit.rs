//! Encodes a pass, submits it, and hands back what it reads.

use super::pass::{Command, Dispatch, Pass, Read};
use super::{Gpu, GpuError, Raw};
use bytemuck::Pod;
use std::sync::mpsc;

/// What submissions reuse: the parameter block, staging buffers that nothing reads any more, the query set.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    params: Option<Raw>,
    /// The pass whose parameters it holds.
    params_of: Option<u64>,
    staging: Vec<Raw>,
    queries: Option<wgpu::QuerySet>,
    timed: Timed,
}

/// Which dispatches get timestamps.
#[derive(Clone, Copy, Debug, Default)]
enum Timed {
    #[default]
    None,
    All,
    /// Compute passes as wholes.
    Passes,
}

/// Timestamps a query set holds; the most that WebGPU allows.
const QUERIES: u32 = 4096;

/// Time of one dispatch, or of one compute pass, on the device.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The kernel, or the label of the pass.
    pub kernel: &'static str,
    /// Nanoseconds between its start and its end.
    pub ns: f64,
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
    /// One entry a dispatch, where timing was asked for.
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
    /// Asks later submissions for a timestamp round every dispatch; false where the adapter has none.
    pub fn time_dispatches(&self, on: bool) -> bool {
        self.time(if on { Timed::All } else { Timed::None })
    }

    /// Asks later submissions for the time of every compute pass, from its first dispatch to the end of all; false where the
    /// adapter has no timestamps. Between timestamps of single dispatches nothing overlaps; inside a pass it does.
    pub fn time_passes(&self, on: bool) -> bool {
        self.time(if on { Timed::Passes } else { Timed::None })
    }

    fn time(&self, timed: Timed) -> bool {
        let able = self
            .device
            .features()
            .contains(wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES));
        self.scratch.lock().expect("no holder of this lock panics").timed =
            if able { timed } else { Timed::None };
        able
    }

    /// Encodes and submits a pass.
    ///
    /// # Errors
    /// [`GpuError::Lost`], [`GpuError::OutOfMemory`] for staging, [`GpuError::Validation`] for a bug in the caller.
    pub fn submit(&self, mut pass: Pass) -> Result<Pending<'_>, GpuError> {
        self.fault()?;
        let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
        let params = self.params_buffer(&mut scratch, &mut pass)?;
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

    /// Sends what is recorded so far to the device, which works on it while the host records the rest. Readbacks are for
    /// [`submit`](Self::submit). Where dispatches are timed it only [cuts](Pass::cut).
    ///
    /// # Errors
    /// As `submit`.
    pub fn flush(&self, pass: &mut Pass) -> Result<(), GpuError> {
        self.fault()?;
        let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
        if !matches!(scratch.timed, Timed::None) {
            pass.cut();
            return Ok(());
        }
        let params = self.params_buffer(&mut scratch, pass)?;
        let encoder = self.encode(pass, params.as_ref(), None);
        self.queue.submit([encoder.finish()]);
        pass.commands.clear();
        Ok(())
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
                // The compute pass of the dispatches before has ended.
                Command::Split => {}
                Command::Cut => {
                    let done =
                        std::mem::replace(&mut encoder, self.device.create_command_encoder(&descriptor));
                    self.queue.submit([done.finish()]);
                }
                Command::Dispatch(first) => {
                    let params = params.expect("a pass with dispatches has parameters");
                    let whole =
                        queries.filter(|(_, which)| matches!(which, Timed::Passes) && query + 2 <= QUERIES);
                    let timestamp_writes = whole.map(|(query_set, _)| wgpu::ComputePassTimestampWrites {
                        query_set,
                        beginning_of_pass_write_index: Some(query),
                        end_of_pass_write_index: Some(query + 1),
                    });
                    query += 2 * u32::from(whole.is_some());
                    let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                        label: Some(pass.label),
                        timestamp_writes,
                    });
                    let mut next = Some(first);
                    while let Some(dispatch) = next {
                        let stamped =
                            queries.filter(|(_, which)| matches!(which, Timed::All) && query + 2 <= QUERIES);
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

    /// The parameters of `pass`, of which what an earlier [`flush`](Self::flush) sent is still there unless another pass
    /// came between.
    fn params_buffer(&self, scratch: &mut Scratch, pass: &mut Pass) -> Result<Option<Raw>, GpuError> {
        if pass.params.is_empty() {
            return Ok(None);
        }
        if scratch.params_of.replace(pass.id) != Some(pass.id) {
            pass.sent = 0;
        }
        let bytes = pass.params.len() as u64;
        if scratch.params.as_ref().is_none_or(|p| p.bytes() < bytes) {
            let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
            let bytes = bytes.next_power_of_two().max(64 << 10);
            scratch.params = Some(self.raw_buffer("params", bytes, usage)?);
            self.forget_bind_groups();
            pass.sent = 0;
        }
        let params = scratch.params.clone().expect("made above");
        if pass.sent < pass.params.len() {
            self.queue.write_buffer(&params.buffer, pass.sent as u64, &pass.params[pass.sent..]);
            pass.sent = pass.params.len();
        }
        Ok(Some(params))
    }

    fn timed(&self, scratch: &mut Scratch, pass: &Pass) -> Vec<&'static str> {
        let which = scratch.timed;
        let dispatch = |command: &Command| match command {
            Command::Dispatch(dispatch) => Some(dispatch.pipeline.variant.kernel.name),
            _ => None,
        };
        let begins = |i: &usize| i.checked_sub(1).is_none_or(|i| dispatch(&pass.commands[i]).is_none());
        let dispatches = (0..pass.commands.len()).filter_map(|i| Some((i, dispatch(&pass.commands[i])?)));
        let most = QUERIES as usize / 2;
        let names: Vec<&'static str> = match which {
            Timed::None => Vec::new(),
            Timed::All => dispatches.map(|(_, name)| name).take(most).collect(),
            Timed::Passes => dispatches.filter(|(i, _)| begins(i)).map(|_| pass.label).take(most).collect(),
        };
        if names.is_empty() {
            return names;
        }
        scratch.queries.get_or_insert_with(|| {
            self.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("dispatches"),
                ty: wgpu::QueryType::Timestamp,
                count: QUERIES,
            })
        });
        names
    }

    fn resolve(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        queries: &wgpu::QuerySet,
        staging: &Raw,
        at: u64,
        dispatches: usize,
    ) -> Result<(), GpuError> {
        let bytes = dispatches as u64 * 16;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = self.raw_buffer("timestamps", bytes, usage)?;
        let count = u32::try_from(dispatches * 2).expect("at most QUERIES");
        encoder.resolve_query_set(queries, 0..count, &resolved.buffer, 0);
        encoder.copy_buffer_to_buffer(&resolved.buffer, 0, &staging.buffer, at, bytes);
        Ok(())
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

fn timings(bytes: &[u8], timed: &[&'static str], at: u64, period_ns: f32) -> Vec<Timing> {
    let at = usize::try_from(at).expect("staging fits in memory");
    let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes[at..at + timed.len() * 16]);
    let pairs = ticks.chunks_exact(2).zip(timed);
    pairs
        .map(|(pair, kernel)| Timing {
            kernel,
            ns: pair[1].saturating_sub(pair[0]) as f64 * f64::from(period_ns),
        })
        .collect()
}

impl Gpu {
    pub(super) fn poll(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<(), GpuError> {
        let polled = self.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        self.fault()?;
        polled.map(|_| ()).map_err(|e| GpuError::Lost { message: e.to_string() })
    }
}
