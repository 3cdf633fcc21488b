//! The disk's part of the ring: the host reads blocks ahead and copies them to slots, and writes dirty blocks back.
//!
//! ```text
//! threads   │ read chunk 1 │ read chunk 2 │ read chunk 3 ...
//! host      │ record 0     │ write 1 to its slot, record 1 │ write 2 to its slot, record 2 │ ...
//! device                   │ attend 0                      │ attend 1                      │ ...
//! ```
//!
//! The device takes what the host writes after the commands sent before it, and before those sent next. So all commands
//! that may still use a slot are sent before the host writes to it. Memory on the way is bounded by that of the [`Spill`],
//! three times over: pieces read ahead, pieces that the device has not taken, and blocks to be written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Read, Submission, Timing};
use attn_kernels::rows::KvWord;
use prefetch::spill::{PendingRead, Piece, Spill, SpillError, SpillRun};

use super::stream::LoadId;
use super::transfer::TransferContext;
use crate::cast::u32_of;
use crate::kv::{BlockRun, block_runs};
use crate::{KvPool, ModelError};

/// Maximum number of submissions whose results the host has not taken yet.
const MAX_SENT: usize = 1;

/// Identifies blocks that are read together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadKey {
    /// Blocks of a layer to which the step adds tokens.
    Begun(usize),
    /// Blocks of a chunk.
    Chunk(LoadId),
}

impl ReadKey {
    fn layer(self) -> usize {
        match self {
            Self::Begun(layer) => layer,
            Self::Chunk(load) => load.layer,
        }
    }
}

/// Times and read errors of the disk's part of a step.
#[derive(Debug, Default)]
pub(in crate::decoder) struct DiskReport {
    /// Times of dispatches that were submitted early.
    pub(in crate::decoder) timings: Vec<Timing>,
    /// Blocks that could not be read, by id.
    pub(in crate::decoder) lost: BTreeMap<u32, SpillError>,
}

/// Transfers of blocks between disk and device.
#[derive(Debug)]
pub(super) struct DiskKeys {
    spill: Arc<Spill>,
    /// Reads in progress, in the order in which they are needed.
    ahead: VecDeque<(ReadKey, PendingRead)>,
    /// Readbacks that are recorded with the current commands.
    returning: Returning,
    sent: VecDeque<Sent>,
    /// Bytes written to the device since the last submission.
    unsent_bytes: usize,
    report: DiskReport,
}

/// Readbacks of the staging blocks of a layer, each with its place on disk.
type Returning = Vec<(SpillRun, Read<KvWord>)>;

/// A submission in progress, its readbacks, and the bytes that the host wrote before it.
#[derive(Debug)]
struct Sent {
    submission: Submission,
    returning: Returning,
    bytes: usize,
}

impl DiskKeys {
    pub(super) fn new(spill: Arc<Spill>) -> Self {
        let (ahead, sent) = Default::default();
        Self { spill, ahead, returning: Vec::new(), sent, unsent_bytes: 0, report: DiskReport::default() }
    }

    /// Forgets the last step.
    pub(super) fn begin(&mut self) {
        *self = Self::new(Arc::clone(&self.spill));
    }

    /// Starts reading the blocks of `copies`, unless they are being read already.
    pub(super) fn read_ahead(&mut self, kv: &KvPool, key: ReadKey, copies: &[(u32, u32)]) {
        if copies.is_empty() || self.ahead.iter().any(|(other, _)| *other == key) {
            return;
        }
        let regions = kv.regions(key.layer());
        let of_run =
            |run: BlockRun| regions.clone().map(move |region| SpillRun { region, blocks: run.from.clone() });
        let all: Vec<SpillRun> = block_runs(copies).into_iter().flat_map(of_run).collect();
        self.ahead.push_back((key, self.spill.read(&all)));
    }

    /// Writes blocks, `(block, target)`, to buffers of the device, after submitting the commands recorded so far.
    pub(super) fn fetch(
        &mut self,
        context: &mut TransferContext<'_>,
        key: ReadKey,
        copies: &[(u32, u32)],
        to: &[&Buf<KvWord>],
    ) -> Result<(), ModelError> {
        if copies.is_empty() {
            return Ok(());
        }
        if self.ahead.front().is_none_or(|(next, _)| *next != key) {
            // Reads share their memory in the order in which they were asked for.
            self.ahead.clear();
            self.read_ahead(context.kv, key, copies);
        }
        self.send(context)?;
        let (_, mut reading) = self.ahead.pop_front().expect("asked for before");
        let words = context.kv.attended(key.layer()).1;
        for BlockRun { from, device } in block_runs(copies) {
            for buffer in to {
                let mut next = from.start;
                while next < from.end {
                    let piece = reading.next().expect("a read brings all of its runs");
                    assert_eq!(piece.run.blocks.start, next, "pieces come in order");
                    let at = (device + next - from.start) as usize * words;
                    next = piece.run.blocks.end;
                    self.land(context, buffer, at, piece)?;
                }
            }
        }
        Ok(())
    }

    fn land(
        &mut self,
        context: &mut TransferContext<'_>,
        buffer: &Buf<KvWord>,
        at: usize,
        piece: Piece,
    ) -> Result<(), ModelError> {
        let on_way: usize = self.sent.iter().map(|sent| sent.bytes).sum();
        if on_way + self.unsent_bytes > 0
            && on_way + self.unsent_bytes + piece.bytes.len() > self.spill.staging_bytes()
        {
            self.send(context)?;
            self.collect(context.gpu, 0)?;
        }
        context.gpu.write_bytes(buffer, at, &piece.bytes);
        self.unsent_bytes += piece.bytes.len();
        self.lose(context.kv, piece.lost);
        Ok(())
    }

    /// Reports blocks that could not be read.
    pub(super) fn lose(&mut self, kv: &KvPool, lost: Vec<SpillError>) {
        for error in lost {
            self.report.lost.entry(kv.disk_id(error.block)).or_insert(error);
        }
    }

    /// Submits the recorded commands, waits for them, and returns `reads`.
    pub(super) fn sync(
        &mut self,
        context: &mut TransferContext<'_>,
        reads: Vec<Read<u32>>,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        let pass = std::mem::replace(context.pass, Pass::new("step"));
        let submission = context.gpu.submit(pass)?.defer();
        let returning = std::mem::take(&mut self.returning);
        self.unsent_bytes = 0;
        self.collect(context.gpu, 0)?;
        let mut outcome = context.gpu.collect(submission)?;
        self.report.timings.append(&mut outcome.timings);
        for (run, read) in returning {
            self.spill.write(run, outcome.bytes(read).to_vec());
        }
        Ok(reads.into_iter().map(|read| outcome.get(read)).collect())
    }

    /// Records the readback of a layer's dirty blocks, `(staging block, block)`.
    pub(super) fn give_back(
        &mut self,
        context: &mut TransferContext<'_>,
        layer: usize,
        copies: &[(u32, u32)],
        staging: &[&Buf<KvWord>],
    ) {
        let words = context.kv.attended(layer).1;
        for BlockRun { from, device } in block_runs(copies) {
            let blocks = device..device + u32_of(from.len());
            let range = from.start as usize * words..from.end as usize * words;
            for (region, buffer) in context.kv.regions(layer).zip(staging) {
                let run = SpillRun { region, blocks: blocks.clone() };
                self.returning.push((run, context.pass.read(buffer, range.clone())));
            }
        }
    }

    /// Ends a layer: submits its readbacks before the next layer reuses the staging blocks.
    pub(super) fn end_layer(&mut self, context: &mut TransferContext<'_>) -> Result<(), ModelError> {
        if self.returning.is_empty() { Ok(()) } else { self.send(context) }
    }

    /// Submits the recorded commands, and takes the results of earlier submissions.
    fn send(&mut self, context: &mut TransferContext<'_>) -> Result<(), ModelError> {
        let pass = std::mem::replace(context.pass, Pass::new("step"));
        let submission = context.gpu.submit(pass)?.defer();
        let (returning, bytes) =
            (std::mem::take(&mut self.returning), std::mem::take(&mut self.unsent_bytes));
        self.sent.push_back(Sent { submission, returning, bytes });
        self.collect(context.gpu, MAX_SENT)
    }

    /// Waits until at most `left` submissions are in progress, and starts writing the blocks that the others read back.
    fn collect(&mut self, gpu: &Gpu, left: usize) -> Result<(), ModelError> {
        let done = self.sent.len().saturating_sub(left);
        for sent in self.sent.drain(..done) {
            let mut outcome = gpu.collect(sent.submission)?;
            self.report.timings.append(&mut outcome.timings);
            for (run, read) in sent.returning {
                self.spill.write(run, outcome.bytes(read).to_vec());
            }
        }
        Ok(())
    }

    /// Ends a step.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<DiskReport, ModelError> {
        self.collect(gpu, 0)?;
        self.ahead.clear();
        Ok(std::mem::take(&mut self.report))
    }
}
