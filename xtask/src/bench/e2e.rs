//! Complete requests through the engine: random prompts, and greedy decoding past the end of sequence. First
//! batches of equal requests, then traces of arrivals.
//!
//! Each workload is warmed up by a short one of the same shape, which pays for compiling shaders.

use std::fs;
use std::io;
use std::time::Instant;

use anyhow::{Context, Result};
use pagoda::{Demand, Engine, Event, Model, Request};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::{replay, workload};
use crate::cli::{BenchArgs, Preempt};
use crate::{model, report};

/// A batch of equal requests.
#[derive(Debug, Clone, Copy)]
struct Workload {
    streams: u32,
    prompt: u32,
    output: u32,
}

/// For GPUs.
const GPU: &[Workload] = &[
    Workload { streams: 1, prompt: 512, output: 128 },
    Workload { streams: 1, prompt: 7_680, output: 128 },
    Workload { streams: 8, prompt: 512, output: 128 },
    Workload { streams: 32, prompt: 512, output: 128 },
    Workload { streams: 64, prompt: 512, output: 128 },
];

/// For software drivers.
const CPU: &[Workload] =
    &[Workload { streams: 1, prompt: 512, output: 32 }, Workload { streams: 4, prompt: 128, output: 16 }];

/// One measured workload.
#[derive(Debug, Serialize)]
struct Row {
    adapter: String,
    driver: String,
    level: String,
    streams: u32,
    prompt: u32,
    output: u32,
    /// Prompt tokens of all streams divided by the time until the last stream's first token, per second.
    prefill_tok_s: f64,
    /// Tokens of all streams divided by the time from there to the end, per second.
    decode_tok_s: f64,
    /// One decode step, mean.
    step_ms: f64,
    /// Share of the decode steps that were encoded while the previous step ran.
    ahead: f64,
    /// Device microseconds of a decode step by kernel, from a run with timestamps.
    kernels_us: Vec<(String, f64, f64)>,
}

/// Runs the suite.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let traces = args.workload.iter().map(|path| workload::read(path)).collect::<Result<Vec<_>>>()?;
    let model = model::open(&args.engine)?;
    let traces = if traces.is_empty() { workload::builtin(batches(args, &model)?)? } else { traces };
    let run = |trace: &workload::Workload| {
        replay::run(args, &model, trace).with_context(|| format!("workload {}", trace.name))
    };
    traces.iter().try_for_each(run)
}

/// Measures batches of equal requests. Returns whether the device is a software driver.
fn batches(args: &BenchArgs, model: &Model) -> Result<bool> {
    let most = GPU.iter().chain(CPU).map(|w| w.streams * (w.prompt + w.output)).max().unwrap_or(0);
    let streams = GPU.iter().map(|w| w.streams).max().unwrap_or(1);
    let longest = GPU.iter().chain(CPU).map(|w| w.prompt + w.output).max().unwrap_or(0);
    let demand = Demand { sequences: streams, tokens: u64::from(most), longest: u64::from(longest) };
    let mut engine = model::engine(&args.engine, model, demand, Preempt::Recompute)?;
    let software = engine.decoder().gpu().is_cpu();
    let workloads = if software { CPU } else { GPU };
    let mut rows = Vec::new();
    for (workload, seed) in workloads.iter().zip(1..) {
        measure(&mut engine, Workload { output: 2, ..*workload }, seed + 2000)?;
        let mut row = measure(&mut engine, *workload, seed)?;
        row.kernels_us = kernels(&mut engine, *workload, args.engine.chunk, seed + 1000)?;
        print(args, &row)?;
        rows.push(row);
    }
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).with_context(|| format!("{}: cannot be created", dir.display()))?;
        let path = dir.join("e2e.json");
        let text = serde_json::to_string_pretty(&rows)?;
        fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(software)
}

/// Random ids, so that prefix hits and patterns in the text do not distort the measurement.
fn prompts(engine: &Engine, workload: Workload, seed: u64) -> Vec<Request> {
    let vocab = engine.decoder().config().vocab_size;
    let mut random = StdRng::seed_from_u64(seed);
    let mut ids = || (0..workload.prompt).map(|_| random.random_range(0..vocab)).collect();
    let request = |_| Request::new(ids()).max_tokens(workload.output).ignore_eos().without_text();
    (0..workload.streams).map(request).collect()
}

/// Runs a workload until every stream has its first token; then calls `decode` for the rest.
fn serve<T>(
    engine: &mut Engine,
    workload: Workload,
    seed: u64,
    decode: impl FnOnce(&mut Engine) -> Result<T>,
) -> Result<(f64, T)> {
    let prompts = prompts(engine, workload, seed);
    let start = Instant::now();
    for prompt in &prompts {
        engine.submit(prompt)?;
    }
    let mut first_tokens = 0;
    let mut seen = std::collections::HashSet::new();
    while first_tokens < workload.streams && engine.has_work() {
        for event in engine.step()? {
            if let Event::Token(token) = event {
                first_tokens += u32::from(seen.insert(token.seq));
            }
        }
    }
    let prefill = start.elapsed().as_secs_f64();
    Ok((prefill, decode(engine)?))
}

fn measure(engine: &mut Engine, workload: Workload, seed: u64) -> Result<Row> {
    let decode = |engine: &mut Engine| {
        let start = Instant::now();
        let ahead = engine.decoder().steps_ahead();
        let (mut tokens, mut steps) = (0, 0);
        while engine.has_work() {
            let events = engine.step()?;
            tokens += events.iter().filter(|e| matches!(e, Event::Token(..))).count();
            steps += 1;
        }
        let ahead = engine.decoder().steps_ahead() - ahead;
        Ok((start.elapsed().as_secs_f64(), tokens, steps, ahead))
    };
    let (prefill, (decode, tokens, steps, ahead)) = serve(engine, workload, seed, decode)?;
    let info = engine.decoder().gpu().info();
    Ok(Row {
        adapter: info.name.clone(),
        driver: info.driver_info.clone(),
        level: format!("{:?}", engine.decoder().gpu().level()),
        streams: workload.streams,
        prompt: workload.prompt,
        output: workload.output,
        prefill_tok_s: f64::from(workload.streams * workload.prompt) / prefill,
        decode_tok_s: count(tokens) / decode,
        step_ms: decode * 1e3 / count(steps),
        ahead: count(usize::try_from(ahead).unwrap_or(0)) / count(steps),
        kernels_us: Vec::new(),
    })
}

/// Device time of a decode step by kernel: `(kernel, dispatches, microseconds)`.
fn kernels(
    engine: &mut Engine,
    workload: Workload,
    chunk: u32,
    seed: u64,
) -> Result<Vec<(String, f64, f64)>> {
    // The first stream is still decoding when the last one's prompt is done.
    let prefills = (workload.streams * workload.prompt).div_ceil(chunk);
    let short = Workload { output: workload.output.min(prefills + 9), ..workload };
    let decode = |engine: &mut Engine| {
        if !engine.time_kernels(true) {
            return Ok(Vec::new());
        }
        let mut steps = 0;
        while engine.has_work() {
            engine.step()?;
            steps += 1;
        }
        engine.time_kernels(false);
        let a_step = |(name, (dispatches, ns)): (&str, (u64, f64))| {
            (
                name.to_owned(),
                count(usize::try_from(dispatches).unwrap_or(0)) / count(steps),
                ns / 1e3 / count(steps),
            )
        };
        Ok(engine.take_kernel_times().into_iter().map(a_step).collect())
    };
    let (_, times) = serve(engine, short, seed, decode)?;
    while engine.has_work() {
        engine.step()?;
    }
    Ok(times)
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn print(args: &BenchArgs, row: &Row) -> Result<()> {
    if args.json {
        return Ok(report::json_line(&mut io::stdout().lock(), row)?);
    }
    println!(
        "{:3} x {:5} + {:3}: prefill {:9.1} tok/s, decode {:8.1} tok/s, step {:7.3} ms, {:3.0} % encoded ahead",
        row.streams,
        row.prompt,
        row.output,
        row.prefill_tok_s,
        row.decode_tok_s,
        row.step_ms,
        row.ahead * 100.0
    );
    for (kernel, dispatches, us) in &row.kernels_us {
        println!("    {kernel:16} {dispatches:6.1} dispatches, {us:9.1} us a step");
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(n: usize) -> f64 {
    n as f64
}
