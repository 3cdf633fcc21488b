//! Complete requests through the engine: random prompts, and greedy decoding past the end of sequence. First
//! batches of equal requests, then, unless a plan is given, traces of arrivals.

mod measure;
mod plan;
mod row;

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pagoda::{Demand, EngineOptions, Model};

use self::measure::Bench;
use self::plan::{Batch, Plan, label};
use self::row::{Row, Setting};
use super::kernels::Ceiling;
use super::{replay, workload};
use crate::cli::{BenchArgs, EngineArgs, Preempt};
use crate::model;

/// Runs the suite.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let traces = args.workload.iter().map(|path| workload::read(path)).collect::<Result<Vec<_>>>()?;
    if !traces.is_empty() {
        return replay_all(args, &model::open(&args.engine)?, &traces);
    }
    let mut rows = Vec::new();
    if args.plan.is_some() {
        for (engine, batches) in Plan::read(args, false)? {
            measure(args, &engine, &model::open(&engine)?, &batches, &mut rows)?;
        }
        return write(args, &rows);
    }
    let model = model::open(&args.engine)?;
    let software = model.gpu(&EngineOptions::from(&args.engine))?.is_cpu();
    for (engine, batches) in Plan::read(args, software)? {
        measure(args, &engine, &model, &batches, &mut rows)?;
    }
    write(args, &rows)?;
    let mut traces = workload::builtin(software)?;
    traces.retain(|trace| trace.turns.is_none());
    replay_all(args, &model, &traces)
}

fn replay_all(args: &BenchArgs, model: &Model, traces: &[workload::Workload]) -> Result<()> {
    let context = model.config.context_length;
    for trace in traces {
        ensure!(trace.turns.is_none(), "workload {}: conversations, turns, are for bench serve", trace.name);
        let longest = trace.longest();
        ensure!(
            longest <= u64::from(context),
            "workload {}: the longest request has {longest} tokens, the context length is {context}",
            trace.name
        );
    }
    let run = |trace: &workload::Workload| {
        replay::run(args, model, trace).with_context(|| format!("workload {}", trace.name))
    };
    traces.iter().try_for_each(run)
}

/// Measures batches on one engine.
fn measure(
    args: &BenchArgs,
    engine: &EngineArgs,
    model: &Model,
    batches: &[Batch],
    rows: &mut Vec<Row>,
) -> Result<()> {
    let label = label(engine);
    let context = model.config.context_length;
    let (fit, long): (Vec<Batch>, Vec<Batch>) = batches.iter().partition(|row| row.longest() <= context);
    long.iter().for_each(|row| eprintln!("{label} {row}: left out, the context length is {context}"));
    let Some(first) = fit.first() else { return Ok(()) };
    let gpu = model.gpu(&EngineOptions::from(engine))?;
    // The first time the device's clock may be down.
    Ceiling::measure(&gpu)?;
    let ceiling = Ceiling::measure(&gpu)?;
    let start = Instant::now();
    let opened = model::engine(engine, model, demand(&fit), Preempt::Recompute)?;
    let load_s = start.elapsed().as_secs_f64();
    let mut bench = Bench { engine: opened, chunk: engine.chunk, seed: 0 };
    eprintln!("{label}: loaded in {load_s:.2} s");
    let setting = Setting { label, args: engine, load_s, ceiling };
    // The first batch runs at clocks that pauses have lowered.
    bench.warm_up(*first)?;
    bench.measure(Batch { prompt: first.prompt.min(4 * engine.chunk), ..*first })?;
    for batch in fit {
        bench.warm_up(batch)?;
        let times = bench.measure(batch)?;
        let mut row = Row::new(&setting, bench.engine.decoder(), batch, times);
        if !args.quick {
            row = row.with_kernels(bench.time_kernels(batch)?);
        }
        row.print(args.json)?;
        rows.push(row);
    }
    Ok(())
}

/// Room for any of the batches.
fn demand(batches: &[Batch]) -> Demand {
    let most = |of: fn(&Batch) -> u64| batches.iter().map(of).max().unwrap_or(0);
    Demand::new(
        batches.iter().map(|row| row.streams).max().unwrap_or(1),
        most(|row| u64::from(row.streams) * u64::from(row.longest())),
    )
    .longest(most(|row| row.longest().into()))
}

fn write(args: &BenchArgs, rows: &[Row]) -> Result<()> {
    let Some(dir) = &args.out else { return Ok(()) };
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be created", dir.display()))?;
    let path = dir.join("e2e.json");
    fs::write(&path, serde_json::to_string_pretty(rows)?)
        .with_context(|| format!("{}: cannot be written", path.display()))
}
