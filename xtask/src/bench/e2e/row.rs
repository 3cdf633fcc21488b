//! Results of `bench e2e`.

use std::io;

use anyhow::Result;
use models::{PageTraffic, Pipeline, say_dense_below};
use pagoda::usage::{SparseUse, readable};
use pagoda_cli::bench::measure::{Batch, KernelTime, KernelTimes, Times, count};
use serde::Serialize;

use super::fetches::Fetches;
use super::order::Speeds;
use crate::bench::kernels::Ceiling;
use crate::cli::EngineArgs;
use crate::report;

/// One measured batch.
#[derive(Debug, Clone, Serialize)]
pub(super) struct EngineRow {
    /// The model, and the flags that change its computation.
    pub(super) configuration: String,
    adapter: String,
    driver: String,
    /// The highest level of its kernels.
    level: String,
    pub(super) streams: u32,
    pub(super) prompt: u32,
    pub(super) output: u32,
    /// Seconds from the checkpoint to an engine that is ready, on a device that is open.
    load_s: f64,
    /// Number of bytes of the checkpoint's tensors.
    weight_bytes: u64,
    /// Prompt tokens of all streams divided by the time until the last stream's first token, per second.
    pub(super) prefill_tok_s: f64,
    /// Tokens of all streams per second, from the last stream's first token until the first stream ends.
    pub(super) decode_tok_s: f64,
    /// Mean milliseconds of a decode step.
    pub(super) step_ms: f64,
    /// Share of the decode steps that were encoded while the previous step ran.
    ahead: f64,
    roofline: Roofline,
    /// Speed relative to the same batch on a device that holds everything, if that was measured before.
    of_resident: Option<Speed>,
    /// Speed relative to the same batch without a policy, if that was measured before.
    of_dense: Option<Speed>,
    /// Share of the blocks that were attended in the phases in which a policy acts. Null without a policy, and for policies
    /// that skip keys inside the attention kernel, which does not count them.
    density: Option<f64>,
    /// Number of tokens below which decode steps of one stream are dense, because selecting takes longer there; if
    /// all are dense, one more than any stream has. Null without a policy, and if the policy decides by itself.
    dense_below: Option<u32>,
    /// Number of tokens below which chunks of prompts are dense because selecting takes longer.
    prefill_dense_below: Option<u32>,
    /// Weights that every step copies from host memory, if there are any.
    streamed: Option<Streamed>,
    /// Pages of selected blocks that decode steps fetched, if the context is on the host.
    pages: Option<Pages>,
    /// Bytes that decode steps copied from the host, and their times; `None` if the host sent nothing.
    #[serde(flatten)]
    pub(super) fetches: Option<Fetches>,
    /// Device times by kernel, from a run with timestamps.
    kernels: KernelTimes,
}

/// Shares of the speed of another row.
#[derive(Debug, Clone, Copy, Serialize)]
struct Speed {
    prefill: f64,
    decode: f64,
}

/// Pages of selected blocks, as shares of all selected pages.
#[derive(Debug, Clone, Copy, Serialize)]
struct Pages {
    /// Share of the pages that attention waited for.
    missed: f64,
    /// Share of the pages that were fetched concurrently with other work.
    ahead: f64,
}

/// Weights that are streamed to the device.
#[derive(Debug, Clone, Copy, Serialize)]
struct Streamed {
    /// Number of bytes per step.
    step_bytes: u64,
    /// Number of streamed bytes per second, averaged over the whole time of the decode steps.
    decode_bytes_s: f64,
}

/// Limits of the device, measured with kernels that do nothing else.
#[derive(Debug, Clone, Serialize)]
struct Roofline {
    /// Number of bytes that a decode step in the middle of the run must read: stored weights, and the cache of every
    /// stream.
    read_bytes: f64,
    /// Maximum number of bytes that the device reads per second.
    read_bytes_s: f64,
    /// Milliseconds of a decode step that reads `read_bytes` at `read_bytes_s`.
    step_ms: f64,
    /// `step_ms` as a share of the measured step.
    of_step: f64,
    /// Number of multiplications and additions in the prefills.
    prefill_operations: f64,
    /// Maximum number of operations per second: of cooperative matrices if the kernels use them, else of f32.
    operations_s: f64,
    /// Time that `prefill_operations` take at `operations_s`, as a share of the measured prefill.
    of_prefill: f64,
}

/// Values that all rows of an engine have in common.
#[derive(Clone)]
pub(super) struct Setting<'a> {
    pub(super) label: String,
    pub(super) args: &'a EngineArgs,
    pub(super) ceiling: Ceiling,
    /// Name of the same configuration on a device that holds everything; `None` if this is that configuration.
    pub(super) resident: Option<String>,
    /// Name of the same configuration with the host tier in device memory; `None` without a host tier, or if this is that
    /// configuration.
    pub(super) control: Option<String>,
    /// Name of the same configuration without a policy; `None` if this is that configuration.
    pub(super) dense: Option<String>,
    /// Measure the first row twice, and keep the second result.
    pub(super) twice: bool,
}

impl EngineRow {
    /// Returns the speeds that are compared with those of other rows.
    pub(super) fn speeds(&self) -> Speeds<'_> {
        Speeds {
            configuration: &self.configuration,
            weight_bytes: self.weight_bytes,
            streams: self.streams,
            prompt: self.prompt,
            prefill: self.prefill_tok_s,
            decode: self.decode_tok_s,
        }
    }

    pub(super) fn new(
        setting: &Setting<'_>,
        load_s: f64,
        pipeline: &Pipeline,
        batch: Batch,
        times: Times,
    ) -> Self {
        let (gpu, args) = (pipeline.gpu(), setting.args);
        let coop = gpu.runs_coop() && !args.no_coop && !args.reproducible;
        let level = if coop { gpu.level() } else { gpu.level().min(attn_kernels::Level::Subgroup) };
        let steps = count(times.steps.max(1) as u64);
        let step_ms = times.decode_s * 1e3 / steps;
        let ceiling = &setting.ceiling;
        let operations_s = if coop { ceiling.operations_s() } else { ceiling.f32_s };
        let read_bytes = pipeline.decode_bytes(batch.streams, batch.prompt + batch.output / 2);
        let operations = pipeline.prefill_operations(batch.prompt) * f64::from(batch.streams);
        let read_ms = read_bytes / ceiling.bytes_s * 1e3;
        let prefill_tok_s = f64::from(batch.streams) * f64::from(batch.prompt) / times.prefill_s;
        let decode_tok_s = count(times.tokens as u64) / times.decode_s;
        let of_decoder = SparseUse::of(None, None).on(pipeline.first());
        Self {
            configuration: setting.label.clone(),
            adapter: gpu.info().name.clone(),
            driver: gpu.info().driver_info.clone(),
            level: format!("{level:?}"),
            streams: batch.streams,
            prompt: batch.prompt,
            output: batch.output,
            load_s,
            weight_bytes: pipeline.weight_sizes().bytes(),
            prefill_tok_s,
            decode_tok_s,
            step_ms,
            ahead: count(times.ahead) / steps,
            roofline: Roofline {
                read_bytes,
                read_bytes_s: ceiling.bytes_s,
                step_ms: read_ms,
                of_step: read_ms / step_ms,
                prefill_operations: operations,
                operations_s,
                of_prefill: operations / operations_s / times.prefill_s,
            },
            of_resident: None,
            of_dense: None,
            density: times.density,
            dense_below: of_decoder.dense_below,
            prefill_dense_below: of_decoder.prefill_dense_below,
            streamed: pipeline.first().weight_placement().map(|placement| Streamed {
                step_bytes: placement.host_bytes,
                decode_bytes_s: count(placement.host_bytes) * 1e3 / step_ms,
            }),
            pages: times.pages.map(|PageTraffic { hits, misses, prefetched, .. }| {
                let selected = count((hits + misses).max(1));
                Pages { missed: count(misses) / selected, ahead: count(prefetched) / selected }
            }),
            fetches: None,
            kernels: KernelTimes::default(),
        }
    }

    /// Compares the row with rows of the same batch among `rows`, as its setting says.
    pub(super) fn compare(&mut self, setting: &Setting<'_>, batch: Batch, rows: &[Self]) {
        let with = |configuration: &Option<String>| {
            let other =
                rows.iter().find(|row| configuration.as_ref().is_some_and(|name| row.is_of(name, batch)))?;
            Some(Speed {
                prefill: self.prefill_tok_s / other.prefill_tok_s,
                decode: self.decode_tok_s / other.decode_tok_s,
            })
        };
        (self.of_resident, self.of_dense) = (with(&setting.resident), with(&setting.dense));
        let step_ms = |configuration: &Option<String>| {
            let name = configuration.as_ref()?;
            rows.iter().find(|row| row.is_of(name, batch)).map(|row| row.step_ms)
        };
        if let Some(fetches) = &mut self.fetches {
            fetches.compare(self.step_ms, step_ms(&setting.resident), step_ms(&setting.control));
        }
    }

    pub(super) fn with_kernels(self, kernels: KernelTimes) -> Self {
        Self { kernels, ..self }
    }

    /// Whether the row is of a batch in a configuration.
    fn is_of(&self, configuration: &str, batch: Batch) -> bool {
        let same = (self.streams, self.prompt, self.output) == (batch.streams, batch.prompt, batch.output);
        same && self.configuration == configuration
    }

    /// Prints the row as text or as a JSON line.
    #[expect(clippy::print_stdout, reason = "the command's result")]
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            return Ok(report::json_line(&mut io::stdout().lock(), self)?);
        }
        println!(
            "{:3} x {:6} + {:3}: prefill {:9.1} tok/s ({:2.0} %), decode {:8.1} tok/s, step {:8.3} ms ({:2.0} %), {:3.0} % encoded ahead",
            self.streams,
            self.prompt,
            self.output,
            self.prefill_tok_s,
            self.roofline.of_prefill * 100.0,
            self.decode_tok_s,
            self.step_ms,
            self.roofline.of_step * 100.0,
            self.ahead * 100.0
        );
        let compared =
            [(self.of_dense, "dense attention"), (self.of_resident, "a device that holds everything")];
        for (speed, other) in compared {
            let Some(Speed { prefill, decode }) = speed else { continue };
            println!("    of {other}: prefill {prefill:.2}, decode {decode:.2}");
        }
        if let Some(density) = self.density {
            println!("    {:.1} % of the blocks were attended", density * 100.0);
        }
        if let Some(tokens) = self.dense_below {
            println!("    one stream is {}", say_dense_below(tokens));
        }
        if let Some(tokens) = self.prefill_dense_below {
            println!("    prompts are {}", say_dense_below(tokens));
        }
        if let Some(Streamed { step_bytes, decode_bytes_s }) = self.streamed {
            let (bytes, rate) = (readable(step_bytes), decode_bytes_s / 1e9);
            println!("    {bytes} of weights a step from host memory: {rate:.1} GB/s while decoding");
        }
        if let Some(Pages { missed, ahead }) = self.pages {
            let [missed, ahead] = [missed, ahead].map(|share| share * 100.0);
            println!(
                "    of the selected pages {missed:.1} % were missing, {ahead:.1} % as many were fetched ahead"
            );
        }
        if let Some(fetches) = &self.fetches {
            println!("    {fetches}");
        }
        let print = |what: &str, times: &[KernelTime]| {
            for KernelTime { kernel, dispatches, us } in times {
                println!("    {kernel:20} {dispatches:8.1} dispatches, {us:11.1} us {what}");
            }
        };
        print("of the prefill", &self.kernels.prefill);
        print("a step", &self.kernels.decode);
        Ok(())
    }
}
