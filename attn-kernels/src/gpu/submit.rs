//! Encodes passes and submits them.

use super::pass::{Command, Dispatch, Params, Pass};
use super::pass_results::{Pending, Readback, Submission, Timing};
use super::{Buf, Gpu, GpuError, Raw};
use crate::Kernel;
use bytemuck::Pod;
use std::ops::Range;

/// Resources that submissions reuse: the parameter block, staging buffers that nothing reads any more, the query set.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    params: Option<Raw>,
    /// Number of the pass whose parameters the buffer holds.
    params_of: Option<u64>,
    pub(super) staging: Vec<Raw>,
    queries: Option<wgpu::QuerySet>,
    timed: Timed,
}

/// Parts of a pass that get timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Timed {
    #[default]
    None,
    All,
    /// Whole compute passes.
    Passes,
}

/// Number of timestamps of a query set: the maximum that WebGPU allows.
const QUERIES: u32 = 4096;

/// A pass in the form that the device takes: [`Gpu::send`] submits it.
#[derive(Debug)]
pub struct Encoded {
    /// Parts of the pass, in order, each submitted separately.
    pieces: Vec<Piece>,
    /// Number of pieces before the place where sending [may stop](Pass::hold).
    held_at: usize,
    params: Option<(Raw, Params)>,
    stamps: Timed,
    readback: Readback,
}

/// Commands that are submitted together.
#[derive(Debug)]
struct Piece {
    commands: wgpu::CommandBuffer,
    /// Whether the commands end with the first run of a kernel, at which a software driver compiles it.
    compiles: bool,
}

/// Encoded commands of a pass.
struct Commands {
    /// Parts of the pass, in order, each submitted separately.
    pieces: Vec<Piece>,
    /// Number of pieces before a [hold](Pass::hold).
    held_at: usize,
    /// Encoder of the last submission, to which commands may still be added.
    last: wgpu::CommandEncoder,
}

impl Gpu {
    /// Reads elements `range` back; waits for all work submitted so far.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and what earlier work left.
    pub fn read<T: Pod>(&self, buf: &Buf<T>, range: Range<usize>) -> Result<Vec<T>, GpuError> {
        let mut pass = Pass::new("read");
        let read = pass.read(buf, range);
        let outcome = self.submit(pass)?.wait()?;
        Ok(outcome.get(read))
    }

    /// Adds a timestamp before and after every dispatch of later submissions, if `on`. Returns false if the adapter
    /// has no timestamps.
    pub fn time_dispatches(&self, on: bool) -> bool {
        self.time(if on { Timed::All } else { Timed::None })
    }

    /// Adds timestamps around every compute pass of later submissions, from its first dispatch to its last, if `on`.
    /// Returns false if the adapter has no timestamps. Timestamps of single dispatches prevent overlap; inside a
    /// compute pass, dispatches overlap.
    pub fn time_passes(&self, on: bool) -> bool {
        self.time(if on { Timed::Passes } else { Timed::None })
    }

    /// Whether later submissions are timed.
    #[must_use]
    pub fn is_timing(&self) -> bool {
        self.scratch.lock().expect("no holder of this lock panics").timed != Timed::None
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
    /// [`GpuError::Lost`], [`GpuError::OutOfMemory`] for staging, [`GpuError::Compile`], what a kernel cannot bind, from
    /// [`GpuError::BindingTooLarge`] on, and [`GpuError::Validation`] for another bug in the caller.
    pub fn submit(&self, pass: Pass) -> Result<Pending<'_>, GpuError> {
        self.send(self.encode(pass)?)
    }

    /// Encodes a pass, to be [sent](Self::send) later. Nothing reaches the device yet, so that the encoding can take
    /// place while other work runs.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn encode(&self, pass: Pass) -> Result<Encoded, GpuError> {
        self.fault()?;
        let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
        let params = self.params_room(&mut scratch, &pass)?;
        let stamps = scratch.timed;
        let timed = self.timed(&mut scratch, &pass);
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
        drop(scratch);

        let queries_of = queries.as_ref().map(|set| (set, stamps));
        let Commands { mut pieces, held_at, last: mut encoder } =
            self.commands(&pass, params.as_ref(), queries_of)?;
        // A read of nothing has nothing to copy, and no staging if it is alone.
        let reads = pass.reads.iter().zip(&spans).filter(|((_, range), _)| !range.is_empty());
        for ((raw, range), (at, _)) in reads {
            let to = staging.as_ref().expect("reads have staging").wgpu();
            encoder.copy_buffer_to_buffer(
                raw.wgpu(),
                range.start,
                to,
                *at as u64,
                (range.end - range.start).next_multiple_of(4),
            );
        }
        if let (Some(queries), Some(staging)) = (&queries, &staging) {
            self.resolve(&mut encoder, queries, staging, timings_at, timed.len())?;
        }
        pieces.push(Piece { commands: encoder.finish(), compiles: false });
        let readback = Readback { staging, spans, timed, timings_at };
        Ok(Encoded { pieces, held_at, params: params.map(|raw| (raw, pass.params)), stamps, readback })
    }

    /// Submits the part of an encoded pass before its [hold](Pass::hold), if it has one. That part reads data that
    /// was written before this call. [`send`](Self::send) submits the rest.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn send_first(&self, encoded: &mut Encoded) -> Result<(), GpuError> {
        self.fault()?;
        let Encoded { pieces, held_at, params, .. } = encoded;
        let first: Vec<Piece> = pieces.drain(..std::mem::take(held_at)).collect();
        if !first.is_empty() {
            let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
            let params = params.as_mut().map(|(raw, params)| (&*raw, params));
            self.launch(&mut scratch, params, first);
        }
        Ok(())
    }

    /// Submits an encoded pass, or the rest of one. The pass reads data that was written before this call.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn send(&self, encoded: Encoded) -> Result<Pending<'_>, GpuError> {
        self.fault()?;
        let Encoded { pieces, mut params, readback, .. } = encoded;
        let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
        let params = params.as_mut().map(|(raw, params)| (&*raw, params));
        let index = self.launch(&mut scratch, params, pieces);
        Ok(Pending { gpu: self, submission: Submission { index, readback } })
    }

    /// Releases the resources of an encoded pass that will not be sent.
    pub fn discard(&self, encoded: Encoded) {
        let staging = encoded.readback.staging;
        self.scratch.lock().expect("no holder of this lock panics").staging.extend(staging);
    }

    /// Whether a pass that is encoded now would get the same timestamps as `encoded`.
    #[must_use]
    pub fn times_as(&self, encoded: &Encoded) -> bool {
        self.scratch.lock().expect("no holder of this lock panics").timed == encoded.stamps
    }

    /// Sends the commands recorded so far to the device, which runs them while the host records the rest. Readbacks
    /// come with [`submit`](Self::submit). If dispatches are timed, the method only [cuts](Pass::cut).
    ///
    /// # Errors
    /// As `submit`.
    pub fn flush(&self, pass: &mut Pass) -> Result<(), GpuError> {
        self.fault()?;
        let mut scratch = self.scratch.lock().expect("no holder of this lock panics");
        if scratch.timed != Timed::None {
            pass.cut();
            return Ok(());
        }
        let params = self.params_room(&mut scratch, pass)?;
        let Commands { mut pieces, last, .. } = self.commands(pass, params.as_ref(), None)?;
        pieces.push(Piece { commands: last.finish(), compiles: false });
        self.launch(&mut scratch, params.as_ref().map(|raw| (raw, &mut pass.params)), pieces);
        pass.commands.clear();
        Ok(())
    }

    /// Encodes the commands of a pass.
    fn commands(
        &self,
        pass: &Pass,
        params: Option<&Raw>,
        queries: Option<(&wgpu::QuerySet, Timed)>,
    ) -> Result<Commands, GpuError> {
        let (mut pieces, mut held_at) = (Vec::new(), 0);
        let descriptor = wgpu::CommandEncoderDescriptor { label: Some(pass.label) };
        let begin = || self.device.create_command_encoder(&descriptor);
        let mut encoder = begin();
        let mut commands = pass.commands.iter().peekable();
        let mut query = 0;
        while let Some(command) = commands.next() {
            match command {
                Command::Copy { from, from_at, to, to_at, bytes } => {
                    encoder.copy_buffer_to_buffer(from.wgpu(), *from_at, to.wgpu(), *to_at, *bytes);
                }
                // The compute pass of the dispatches before has ended.
                Command::Split => {}
                Command::Cut | Command::Hold => {
                    let commands = std::mem::replace(&mut encoder, begin()).finish();
                    pieces.push(Piece { commands, compiles: false });
                    if matches!(command, Command::Hold) {
                        held_at = pieces.len();
                    }
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
                    let (mut next, mut compiles) = (Some(first), false);
                    while let Some(dispatch) = next {
                        let stamped =
                            queries.filter(|(_, which)| matches!(which, Timed::All) && query + 2 <= QUERIES);
                        if let Some((set, _)) = stamped {
                            compute.write_timestamp(set, query);
                            self.dispatch(&mut compute, dispatch, params)?;
                            compute.write_timestamp(set, query + 1);
                            query += 2;
                        } else {
                            self.dispatch(&mut compute, dispatch, params)?;
                        }
                        compiles = self.is_cpu() && queries.is_none() && dispatch.pipeline.runs_first();
                        let more = commands.next_if(|c| !compiles && matches!(c, Command::Dispatch(_)));
                        next = more.and_then(|c| if let Command::Dispatch(d) = c { Some(d) } else { None });
                    }
                    drop(compute);
                    if compiles {
                        let commands = std::mem::replace(&mut encoder, begin()).finish();
                        pieces.push(Piece { commands, compiles });
                    }
                }
            }
        }
        Ok(Commands { pieces, held_at, last: encoder })
    }

    fn dispatch(
        &self,
        compute: &mut wgpu::ComputePass<'_>,
        dispatch: &Dispatch,
        params: &Raw,
    ) -> Result<(), GpuError> {
        compute.set_pipeline(dispatch.pipeline.raw()?);
        let group = self.bind_group(dispatch, params)?;
        compute.set_bind_group(0, &group, &[dispatch.params_at]);
        let [x, y, z] = dispatch.workgroups;
        compute.dispatch_workgroups(x, y, z);
        Ok(())
    }

    /// Returns a buffer that is large enough for the parameters of `pass`, which are written when the pass is sent;
    /// `None` if the pass has no parameters.
    fn params_room(&self, scratch: &mut Scratch, pass: &Pass) -> Result<Option<Raw>, GpuError> {
        let bytes = pass.params.bytes.len() as u64;
        if bytes > 0 && scratch.params.as_ref().is_none_or(|p| p.bytes() < bytes) {
            let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
            let bytes = bytes.next_power_of_two().max(64 << 10);
            scratch.params = Some(self.raw_buffer("params", bytes, usage)?);
            scratch.params_of = None;
            self.forget_bind_groups();
        }
        Ok(scratch.params.clone().filter(|_| bytes > 0))
    }

    /// Submits commands that read `params`, and writes the missing parameters first. `scratch` stays locked
    /// meanwhile, because another thread could replace the parameters.
    fn launch(
        &self,
        scratch: &mut Scratch,
        params: Option<(&Raw, &mut Params)>,
        pieces: Vec<Piece>,
    ) -> Option<wgpu::SubmissionIndex> {
        if let Some((raw, params)) = params {
            // A pass that was encoded before the buffer grew has a buffer of its own.
            let shared = scratch.params.as_ref().is_some_and(|now| now.id() == raw.id());
            let kept = shared && scratch.params_of.replace(params.pass) == Some(params.pass);
            let from = if kept { params.sent } else { 0 };
            if from < params.bytes.len() {
                self.queue.write_buffer(raw.wgpu(), from as u64, &params.bytes[from..]);
            }
            params.sent = params.bytes.len();
        }
        pieces.iter().filter(|piece| piece.compiles).for_each(|_| self.counts.ask());
        let submit = |piece: Piece| {
            let index = self.queue.submit([piece.commands]);
            if piece.compiles {
                // One after the other, so that it can be seen how far it is. An error comes again with what follows.
                let wait = wgpu::PollType::Wait { submission_index: Some(index.clone()), timeout: None };
                let _ = self.device.poll(wait);
                self.counts.finish();
            }
            index
        };
        pieces.into_iter().map(submit).last()
    }

    /// Lists the timed parts of `pass`, still without times.
    fn timed(&self, scratch: &mut Scratch, pass: &Pass) -> Vec<Timing> {
        let which = scratch.timed;
        let dispatch = |command: &Command| match command {
            Command::Dispatch(dispatch) => Some(dispatch.pipeline.variant.kernel),
            _ => None,
        };
        let of_kernel = |kernel: &Kernel| Timing { kernel: kernel.name, role: Some(kernel.role), ns: 0.0 };
        let of_pass = || Timing { kernel: pass.label, role: None, ns: 0.0 };
        let begins = |i: &usize| i.checked_sub(1).is_none_or(|i| dispatch(&pass.commands[i]).is_none());
        let dispatches = (0..pass.commands.len()).filter_map(|i| Some((i, dispatch(&pass.commands[i])?)));
        let most = QUERIES as usize / 2;
        let timed: Vec<Timing> = match which {
            Timed::None => Vec::new(),
            Timed::All => dispatches.map(|(_, kernel)| of_kernel(kernel)).take(most).collect(),
            Timed::Passes => dispatches.filter(|(i, _)| begins(i)).map(|_| of_pass()).take(most).collect(),
        };
        if timed.is_empty() {
            return timed;
        }
        scratch.queries.get_or_insert_with(|| {
            self.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("dispatches"),
                ty: wgpu::QueryType::Timestamp,
                count: QUERIES,
            })
        });
        timed
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
        encoder.resolve_query_set(queries, 0..count, resolved.wgpu(), 0);
        encoder.copy_buffer_to_buffer(resolved.wgpu(), 0, staging.wgpu(), at, bytes);
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
