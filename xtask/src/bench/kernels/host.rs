//! The host's side of a step: recording and submitting a fixed list of dispatches.

use std::time::Instant;

use anyhow::{Result, ensure};
use attn_kernels::Level;
use attn_kernels::gpu::{Buf, Gpu, Pass};
use attn_kernels::kernel::lse_merge::{self, LseMergeBuffers, LseMergeParams};

use super::work::{Bench, Cost, Timed};

/// Number of dispatches of a step, and of layers that have buffers of their own.
const DISPATCHES: usize = 300;
const LAYERS: usize = 30;
const STEPS: usize = 40;

/// Measures the seconds that the host takes to record a step and submit it to the driver; the device's own work is
/// negligible. The first steps make pipelines, bind groups and buffers; later steps must make none.
pub(super) fn record(bench: &Bench) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let (dim, rows) = (64, 4);
    let layers: Vec<[Buf<f32>; 4]> = (0..LAYERS)
        .map(|_| {
            let [out, lse] = [(rows * dim) as usize, rows as usize];
            Ok([
                gpu.buffer("b", out)?,
                gpu.buffer("b_lse", lse)?,
                gpu.buffer("a", out)?,
                gpu.buffer("a_lse", lse)?,
            ])
        })
        .collect::<Result<_>>()?;
    let mut times = Vec::with_capacity(STEPS);
    let mut made = 0;
    for index in 0..STEPS {
        if index == STEPS / 4 {
            made = gpu.objects_made();
        }
        let begin = Instant::now();
        let pending = gpu.submit(step(gpu, &layers, dim, rows)?)?;
        times.push(begin.elapsed().as_secs_f64());
        pending.wait()?;
    }
    let made = gpu.objects_made() - made;
    ensure!(made == 0, "{} steady steps made {made} buffers, bind groups or pipelines", STEPS - STEPS / 4);
    times.sort_by(f64::total_cmp);
    let cost = Cost {
        kernel: "record, submit".into(),
        level: Level::Baseline.name(),
        shape: format!("{DISPATCHES} dispatches on the host, no object of the GPU made"),
        bytes: 0.0,
        operations: 0.0,
    };
    Ok(vec![Timed { cost, seconds: times[STEPS / 2], dense: None, density: None, recall: None }])
}

/// Records the dispatches of one step, and a readback as of sampled ids.
fn step(gpu: &Gpu, layers: &[[Buf<f32>; 4]], dim: u32, rows: u32) -> Result<Pass> {
    let pipeline = gpu.pipeline(&lse_merge::variant(dim))?;
    let params = LseMergeParams::new(rows);
    let mut pass = Pass::new("record");
    for layer in layers.iter().cycle().take(DISPATCHES) {
        let [b_out, b_lse, a_out, a_lse] = layer.each_ref().map(Buf::bind);
        let buffers = LseMergeBuffers { b_out, b_lse, a_out, a_lse };
        pass.dispatch(&pipeline, &params, buffers);
    }
    pass.read(&layers[0][2], 0..1);
    Ok(pass)
}
