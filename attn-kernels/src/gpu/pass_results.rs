//! Work that was submitted, and its results.

use super::pass::Read;
use super::{Gpu, GpuError, Raw};
use crate::KernelRole;
use bytemuck::Pod;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// Time of one dispatch, or of one compute pass, on the device.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The kernel, or the label of the pass.
    pub kernel: &'static str,
    /// Role of the kernel; `None` for a compute pass.
    pub role: Option<KernelRole>,
    /// Time from start to end, in nanoseconds.
    pub ns: f64,
}

/// Submitted work that has not been waited for.
#[derive(Debug)]
#[must_use = "errors and readbacks arrive with wait()"]
pub struct Pending<'g> {
    pub(super) gpu: &'g Gpu,
    pub(super) submission: Submission,
}

/// Submitted work that its device [collects](Gpu::collect) later.
#[derive(Debug)]
#[must_use = "errors and readbacks arrive with Gpu::collect"]
pub struct Submission {
    pub(super) index: Option<wgpu::SubmissionIndex>,
    pub(super) readback: Readback,
}

/// Staging memory for the readbacks and timestamps of a pass.
#[derive(Debug)]
pub(super) struct Readback {
    pub(super) staging: Option<Raw>,
    /// Places of the readbacks in the staging memory, in bytes.
    pub(super) spans: Vec<(usize, usize)>,
    /// Labels of the timestamps that follow, still without times.
    pub(super) timed: Vec<Timing>,
    pub(super) timings_at: u64,
}

/// Results of a finished pass.
#[derive(Debug)]
pub struct PassResults {
    bytes: Vec<u8>,
    spans: Vec<(usize, usize)>,
    /// Times of the dispatches, if timing was on.
    pub timings: Vec<Timing>,
}

impl PassResults {
    /// The data of one readback.
    ///
    /// # Panics
    /// When `read` belongs to another pass.
    #[must_use]
    pub fn get<T: Pod>(&self, read: Read<T>) -> Vec<T> {
        bytemuck::pod_collect_to_vec(self.bytes(read))
    }

    /// The bytes of one readback.
    ///
    /// # Panics
    /// When `read` belongs to another pass.
    #[must_use]
    pub fn bytes<T>(&self, read: Read<T>) -> &[u8] {
        let (start, end) = self.spans[read.index];
        &self.bytes[start..end]
    }
}

impl Pending<'_> {
    /// Waits for the work and returns its readback.
    ///
    /// # Errors
    /// [`GpuError::Lost`] when the device went away, [`GpuError::Validation`] for a bug in the caller.
    pub fn wait(self) -> Result<PassResults, GpuError> {
        self.gpu.collect(self.submission)
    }

    /// Converts to a [`Submission`], which does not borrow the device: later submissions may precede the wait.
    pub fn defer(self) -> Submission {
        self.submission
    }
}

/// Readbacks of a finished pass, still in the memory that the device wrote.
#[derive(Debug)]
pub struct Readbacks<'a> {
    bytes: &'a [u8],
    spans: &'a [(usize, usize)],
}

impl Readbacks<'_> {
    /// The bytes of one readback.
    ///
    /// # Panics
    /// When `read` belongs to another pass.
    #[must_use]
    pub fn bytes<T>(&self, read: &Read<T>) -> &[u8] {
        let (start, end) = self.spans[read.index];
        &self.bytes[start..end]
    }
}

/// Interval at which a thread polls for the end of its work while other threads wait too.
const LOOKS: Duration = Duration::from_millis(1);

impl Gpu {
    /// Waits for work of this device and returns its readback.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn collect(&self, mut submission: Submission) -> Result<PassResults, GpuError> {
        let Readback { staging, spans, timed, timings_at } = &mut submission.readback;
        let (spans, timed, at) = (std::mem::take(spans), std::mem::take(timed), *timings_at);
        if staging.is_none() {
            self.poll(submission.index)?;
            return Ok(PassResults { bytes: Vec::new(), spans, timings: Vec::new() });
        }
        let index = submission.index.take();
        let bytes = self.landed(submission, |receiver| self.wait_for(index, receiver), <[u8]>::to_vec)?;
        let timings = timings(&bytes, timed, at, self.queue.get_timestamp_period());
        Ok(PassResults { bytes, spans, timings })
    }

    /// Waits for work of this device, and passes its readback to `take` without a copy.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn collect_in_place<R>(
        &self,
        submission: Submission,
        take: impl FnOnce(Readbacks<'_>) -> R,
    ) -> Result<R, GpuError> {
        let index = submission.index.clone();
        self.in_place(submission, |receiver| self.wait_for(index, receiver), take)
    }

    /// Waits for work of this device on a thread other than the submitting one, and passes its readback to `take` without a
    /// copy.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn collect_beside<R>(
        &self,
        submission: Submission,
        take: impl FnOnce(Readbacks<'_>) -> R,
    ) -> Result<R, GpuError> {
        // A wait for the device would hold submissions up.
        let look = |receiver: &Receiver<Mapped>| loop {
            match receiver.recv_timeout(LOOKS) {
                Err(RecvTimeoutError::Timeout) => {
                    let polled = self.device.poll(wgpu::PollType::Poll);
                    self.fault()?;
                    polled.map_err(|e| GpuError::Lost { message: e.to_string() })?;
                }
                received => return received.map_err(|_| never_mapped()),
            }
        };
        self.in_place(submission, look, take)
    }

    fn in_place<R>(
        &self,
        mut submission: Submission,
        wait: impl FnOnce(&Receiver<Mapped>) -> Result<Mapped, GpuError>,
        take: impl FnOnce(Readbacks<'_>) -> R,
    ) -> Result<R, GpuError> {
        let spans = std::mem::take(&mut submission.readback.spans);
        let of = |bytes: &[u8]| take(Readbacks { bytes, spans: &spans });
        if submission.readback.staging.is_none() {
            self.poll(submission.index)?;
            return Ok(of(&[]));
        }
        self.landed(submission, wait, of)
    }

    fn wait_for(
        &self,
        index: Option<wgpu::SubmissionIndex>,
        mapped: &Receiver<Mapped>,
    ) -> Result<Mapped, GpuError> {
        self.poll(index)?;
        mapped.recv().map_err(|_| never_mapped())
    }

    /// Maps the readbacks of a submission, and passes their bytes to `take` once `wait` has reported them complete.
    fn landed<R>(
        &self,
        submission: Submission,
        wait: impl FnOnce(&Receiver<Mapped>) -> Result<Mapped, GpuError>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, GpuError> {
        let staging = submission.readback.staging.expect("what was read has staging");
        let (sender, receiver) = mpsc::channel();
        staging.wgpu().map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver is gone only when the wait below has already failed.
            let _ = sender.send(result);
        });
        wait(&receiver)?.map_err(|e| GpuError::Lost { message: e.to_string() })?;
        let view = staging
            .wgpu()
            .get_mapped_range(..)
            .map_err(|e| GpuError::Validation { message: e.to_string() })?;
        let taken = take(&view);
        drop(view);
        staging.wgpu().unmap();
        self.scratch.lock().expect("no holder of this lock panics").staging.push(staging);
        Ok(taken)
    }
}

/// Result of mapping a buffer.
type Mapped = Result<(), wgpu::BufferAsyncError>;

fn never_mapped() -> GpuError {
    GpuError::Lost { message: "mapping never finished".into() }
}

fn timings(bytes: &[u8], timed: Vec<Timing>, at: u64, period_ns: f32) -> Vec<Timing> {
    let at = usize::try_from(at).expect("staging fits in memory");
    let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes[at..at + timed.len() * 16]);
    let pairs = ticks.chunks_exact(2).zip(timed);
    pairs
        .map(|(pair, timing)| Timing {
            ns: pair[1].saturating_sub(pair[0]) as f64 * f64::from(period_ns),
            ..timing
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
