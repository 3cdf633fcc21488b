//! One kernel, or several that belong together, at one shape: what it dispatches, and what that moves and computes.

use std::time::Instant;

use anyhow::Result;
use attn_kernels::Variant;
use attn_kernels::gpu::{Bind, Gpu, Pass};
use bytemuck::Pod;

/// Runs of which the median counts.
const RUNS: usize = 7;

/// Dispatches, and what they are worth.
pub(super) struct Work {
    /// The kernel that it is about.
    pub(super) kernel: String,
    /// The level that its kernels are built for.
    pub(super) level: &'static str,
    /// Shapes and types, as text.
    pub(super) shape: String,
    /// Bytes that it must read and write, each once.
    pub(super) bytes: f64,
    /// Operations that it must do: a multiply-add is two.
    pub(super) operations: f64,
    dispatches: Vec<Dispatch>,
}

struct Dispatch {
    variant: Variant,
    params: Vec<u8>,
    bindings: Vec<Bind>,
    grid: [u32; 3],
}

impl Work {
    pub(super) fn new(kernel: &str, level: &'static str, shape: String) -> Self {
        Self { kernel: kernel.into(), level, shape, bytes: 0.0, operations: 0.0, dispatches: Vec::new() }
    }

    /// Sets what it moves and computes.
    pub(super) fn costs(mut self, bytes: f64, operations: f64) -> Self {
        (self.bytes, self.operations) = (bytes, operations);
        self
    }

    /// Adds a dispatch.
    pub(super) fn dispatch<P: Pod>(
        mut self,
        variant: Variant,
        params: &P,
        bindings: impl IntoIterator<Item = Bind>,
        grid: [u32; 3],
    ) -> Self {
        let params = bytemuck::bytes_of(params).into();
        self.dispatches.push(Dispatch { variant, params, bindings: bindings.into_iter().collect(), grid });
        self
    }

    /// Seconds on the device, with what `flush` reads in its caches instead of the last run's data.
    pub(super) fn time(&self, gpu: &Gpu, flush: &dyn Fn(&mut Pass)) -> Result<f64> {
        let pipelines: Vec<_> =
            self.dispatches.iter().map(|d| gpu.pipeline(&d.variant)).collect::<Result<_, _>>()?;
        time(gpu, flush, |pass| {
            for (dispatch, pipeline) in self.dispatches.iter().zip(&pipelines) {
                pass.dispatch_bytes(pipeline, &dispatch.params, &dispatch.bindings, dispatch.grid);
            }
        })
    }
}

/// Median seconds of what `record` records, after one run that counts for nothing: the sum of the dispatches' timestamps,
/// or where the adapter has none the time until the result is there.
pub(super) fn time(gpu: &Gpu, flush: &dyn Fn(&mut Pass), record: impl Fn(&mut Pass)) -> Result<f64> {
    let stamped = gpu.time_dispatches(true);
    let mut runs = Vec::with_capacity(RUNS);
    // A run that takes long need not be repeated often.
    let begun = Instant::now();
    for run in 0..=RUNS {
        let mut pass = Pass::new("flush");
        flush(&mut pass);
        gpu.submit(pass)?.wait()?;
        let mut pass = Pass::new("bench");
        record(&mut pass);
        let start = Instant::now();
        let outcome = gpu.submit(pass)?.wait()?;
        let wall = start.elapsed().as_secs_f64();
        let device: f64 = outcome.timings.iter().map(|timing| timing.ns * 1e-9).sum();
        if run > 0 {
            runs.push(if stamped { device } else { wall });
        }
        if run > 0 && begun.elapsed().as_secs_f64() > 4.0 {
            break;
        }
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[runs.len() / 2])
}
