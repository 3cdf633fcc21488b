//! Timestamps: what gets them, and what they say.

use super::pass::{Command, Dispatch, Pass};
use super::submit::Scratch;
use super::{Gpu, GpuError, Raw};

/// What gets timestamps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Timed {
    #[default]
    None,
    Dispatches,
    Kernel(&'static str),
    Runs,
}

impl Timed {
    pub(super) fn holds(self, dispatch: &Dispatch) -> bool {
        match self {
            Self::None | Self::Runs => false,
            Self::Dispatches => true,
            Self::Kernel(name) => dispatch.pipeline.variant.kernel.name == name,
        }
    }

    pub(super) fn holds_runs(self) -> bool {
        matches!(self, Self::Runs)
    }

    /// Kernels of what is timed in a pass: those of dispatches, or the first of each run of them.
    fn kernels(self, pass: &Pass) -> Vec<&'static str> {
        let mut before = false;
        let mut kernels = Vec::new();
        for command in &pass.commands {
            let dispatch = if let Command::Dispatch(dispatch) = command { Some(dispatch) } else { None };
            let begins = self.holds_runs() && !before;
            kernels
                .extend(dispatch.filter(|d| begins || self.holds(d)).map(|d| d.pipeline.variant.kernel.name));
            before = dispatch.is_some();
        }
        kernels.truncate(QUERIES as usize / 2);
        kernels
    }
}

/// Timestamps a query set holds; the most that WebGPU allows.
pub(super) const QUERIES: u32 = 4096;

/// Time of one dispatch, or of a run of them, on the device.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The kernel, the first one of a run.
    pub kernel: &'static str,
    /// Nanoseconds between its start and its end.
    pub ns: f64,
}

impl Gpu {
    /// Asks later submissions for a timestamp round every dispatch; false where the adapter has none. No two dispatches
    /// overlap then, and each takes some microseconds more.
    pub fn time_dispatches(&self, on: bool) -> bool {
        self.time(if on { Timed::Dispatches } else { Timed::None })
    }

    /// Asks later submissions for a timestamp round every dispatch of one kernel: from the end of all work before it to its
    /// own end, so that what ran beside other work does not count.
    pub fn time_kernel(&self, name: &'static str) -> bool {
        self.time(Timed::Kernel(name))
    }

    /// Asks later submissions for a timestamp round every run of dispatches without a copy or cut between them, which then
    /// take the time that they take without timestamps.
    pub fn time_runs(&self) -> bool {
        self.time(Timed::Runs)
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

    /// Kernels of what is timed in a pass; makes the query set when there are any.
    pub(super) fn timed(&self, scratch: &mut Scratch, pass: &Pass) -> Vec<&'static str> {
        let names = scratch.timed.kernels(pass);
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

    /// Records the copy of `pairs` pairs of timestamps to byte `at` of `staging`.
    pub(super) fn resolve(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        queries: &wgpu::QuerySet,
        staging: &Raw,
        at: u64,
        pairs: usize,
    ) -> Result<(), GpuError> {
        let bytes = pairs as u64 * 16;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = self.raw_buffer("timestamps", bytes, usage)?;
        let count = u32::try_from(pairs * 2).expect("at most QUERIES");
        encoder.resolve_query_set(queries, 0..count, &resolved.buffer, 0);
        encoder.copy_buffer_to_buffer(&resolved.buffer, 0, &staging.buffer, at, bytes);
        Ok(())
    }
}

/// What the timestamps at byte `at` of a readback say.
pub(super) fn timings(bytes: &[u8], timed: &[&'static str], at: u64, period_ns: f32) -> Vec<Timing> {
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
