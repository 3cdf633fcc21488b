//! Complete requests through the engine: random prompts, and greedy decoding past the end of sequence. First
//! batches of equal requests, then, on GPUs or if a filter names them, and unless a plan is given, traces of arrivals.

mod fetches;
mod order;
mod plan;
mod row;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use models::KvPlan;
use pagoda::{Demand, EngineOptions, Model, Preemption};
use pagoda_cli::bench::measure::{Batch, Bench, count};
use prefetch::spec::TierSpec;
use sparse_select::Registry;

use self::fetches::Fetches;
use self::plan::{EnginePlan, Run, with_pool};
use self::row::{EngineRow, Setting};
use super::kernels::Ceiling;
use super::{page, replay, workload};
use crate::cli::{BenchArgs, EngineArgs};
use crate::model;
use crate::open_model::open_model;

/// Runs the suite.
pub(super) fn run(args: &BenchArgs, registry: &Registry) -> Result<()> {
    let mut traces = args.workload.iter().map(|path| workload::read(path)).collect::<Result<Vec<_>>>()?;
    if !traces.is_empty() {
        let names = names(&traces);
        traces.retain(|trace| selects(args, trace));
        ensure!(!traces.is_empty(), "--filter leaves no workload of {names}");
        return replay_all(args, &open_model(&args.engine)?, &traces);
    }
    let mut rows = Vec::new();
    if args.plan.is_some() {
        let runs = EnginePlan::read(args, registry, false)?;
        let in_order = EnginePlan::in_order(args)?;
        for run in &runs {
            measure(args, run, &runs, &open_model(&run.engine)?, &mut rows)?;
        }
        write(args, &rows)?;
        let Some(share) = in_order else { return Ok(()) };
        let speeds: Vec<_> = rows.iter().map(EngineRow::speeds).collect();
        return order::hold(&speeds, share, args.engine.chunk);
    }
    let model = open_model(&args.engine)?;
    let software = model.gpu(&EngineOptions::from(&args.engine))?.is_cpu();
    let mut traces = workload::builtin(software)?;
    traces.retain(|trace| trace.turns.is_none());
    let names = names(&traces);
    // On a software driver they take minutes more than the plan does.
    traces.retain(|trace| selects(args, trace) && (!software || is_named(args, trace)));
    let (runs, labels) = EnginePlan::wanted(args, registry, software)?;
    let is_something_left = !runs.is_empty() || !traces.is_empty();
    ensure!(is_something_left, "--filter leaves no row of {}, and no workload of {names}", labels.join(", "));
    for run in &runs {
        measure(args, run, &runs, &model, &mut rows)?;
    }
    if !runs.is_empty() {
        write(args, &rows)?;
    }
    replay_all(args, &model, &traces)
}

fn names(traces: &[workload::Workload]) -> String {
    traces.iter().map(|trace| trace.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether every word of the filter is in the label of the engine and the name of a trace.
fn selects(args: &BenchArgs, trace: &workload::Workload) -> bool {
    let label = format!("{} {}", args.engine.label(), trace.name);
    plan::is_wanted(args.filter.as_deref(), &label)
}

/// Whether a word of the filter is in the name of a trace.
fn is_named(args: &BenchArgs, trace: &workload::Workload) -> bool {
    let mut words = args.filter.iter().flat_map(|filter| filter.split_whitespace());
    words.any(|word| trace.name.to_lowercase().contains(&word.to_lowercase()))
}

fn replay_all(args: &BenchArgs, model: &Arc<Model>, traces: &[workload::Workload]) -> Result<()> {
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

/// Measures the rows of one of `runs`: all on one engine, or each on its own engine if the size of the pool depends
/// on the row.
fn measure(
    args: &BenchArgs,
    run: &Run,
    runs: &[Run],
    model: &Arc<Model>,
    rows: &mut Vec<EngineRow>,
) -> Result<()> {
    let label = with_pool(&run.label(), run.pool);
    let context = model.config.context_length;
    let (fit, long): (Vec<Batch>, Vec<Batch>) = run.rows.iter().partition(|row| row.longest() <= context);
    long.iter().for_each(|row| eprintln!("{label} {row}: left out, the context length is {context}"));
    if fit.is_empty() {
        return Ok(());
    }
    let gpu = model.gpu(&EngineOptions::from(&run.engine))?;
    // The first time the device's clock may be down.
    Ceiling::measure(&gpu)?;
    let ceiling = Ceiling::measure(&gpu)?;
    // What others are compared with must not be the slow first measurement of a device.
    let twice = rows.is_empty() && runs.iter().any(|other| other.dense().as_ref() == Some(&label));
    let (resident, control, dense) = (run.resident(), run.control(), run.dense());
    let setting = Setting { label, args: &run.engine, ceiling, resident, control, dense, twice };
    let Some(share) = run.pool else { return measure_on(args, &setting, model, &fit, rows) };
    for batch in fit {
        let engine = beyond(&run.engine, model, batch, share)?;
        let setting = Setting { args: &engine, ..setting.clone() };
        measure_on(args, &setting, model, &[batch], rows)?;
    }
    Ok(())
}

/// The flags of an engine whose device has room for a share of the KV of a batch, and whose host has room for all.
fn beyond(args: &EngineArgs, model: &Model, batch: Batch, share: f64) -> Result<EngineArgs> {
    let options = EngineOptions::from(args).kv().recycle(false);
    let block_bytes = KvPlan::new(&model.config, options)?.block_bytes();
    let (streams, size) = (u64::from(batch.streams), u64::from(args.block_size));
    // As many as the engine extends its pool by: what is more would be a tier of finished blocks.
    let blocks =
        (streams * u64::from(batch.longest())).div_ceil(size) + streams + u64::from(args.sparse.is_some());
    let mut tiers = TierSpec::default();
    tiers.host_bytes = Some(blocks * block_bytes);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32")]
    let device = (count(blocks) * share).ceil() as u32;
    Ok(EngineArgs { kv_blocks: Some(device.max(2)), kv_tiers: Some(tiers), ..args.clone() })
}

/// Measures batches on one engine.
fn measure_on(
    args: &BenchArgs,
    setting: &Setting<'_>,
    model: &Arc<Model>,
    batches: &[Batch],
    rows: &mut Vec<EngineRow>,
) -> Result<()> {
    let engine = setting.args;
    let start = Instant::now();
    let opened = model::engine(engine, model, demand(batches), Preemption::Recompute)?;
    let load_s = start.elapsed().as_secs_f64();
    let mut bench = Bench { engine: opened, chunk: engine.chunk, seed: 0, text: None };
    eprintln!("{}: loaded in {load_s:.2} s", setting.label);
    // The first batch runs at clocks that pauses have lowered.
    bench.warm_up(batches[0])?;
    bench.measure(Batch { prompt: batches[0].prompt.min(4 * engine.chunk), ..batches[0] })?;
    for batch in batches {
        bench.warm_up(*batch)?;
        if setting.twice && rows.is_empty() {
            bench.measure(*batch)?;
        }
        let times = bench.measure(*batch)?;
        let fetches = Fetches::new(&times, bench.engine.fetch_cost()?);
        let mut row = EngineRow::new(setting, load_s, bench.engine.pipeline(), *batch, times);
        row.fetches = fetches;
        row.compare(setting, *batch, rows);
        if !args.quick {
            row = row.with_kernels(bench.time_kernels(*batch)?);
        }
        row.print(args.json)?;
        rows.push(row);
    }
    Ok(())
}

/// The demand on an engine that covers each of the batches.
fn demand(batches: &[Batch]) -> Demand {
    let most = |of: fn(&Batch) -> u64| batches.iter().map(of).max().unwrap_or(0);
    Demand::new(
        batches.iter().map(|row| row.streams).max().unwrap_or(1),
        most(|row| u64::from(row.streams) * u64::from(row.longest())),
    )
    .longest(most(|row| row.longest().into()))
}

fn write(args: &BenchArgs, rows: &[EngineRow]) -> Result<()> {
    let Some(dir) = &args.out else { return Ok(()) };
    page::write(dir, "e2e.json", &rows)
}
