//! Turnover of selections on real text: the share of a decode step's blocks that the step before did not select, by policy,
//! layer and KV head. It decides what contexts beyond the device cost: a block that stays selected is not fetched again.
//!
//! One dense run serves all policies: each is asked in every step and layer what it would select.

mod history;
mod observer;
mod plan;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use models::batch::Phase;
use pagoda::{Demand, EngineOptions, Model, Registry, SelectionPlace, Sequence, Sparse, StepWork};
use pagoda_cli::progress::Template;
use serde::Serialize;

use super::text_ids;
use crate::bench::{page, plan as plans};
use crate::cli::{BenchArgs, EngineArgs};
use crate::open_model::open_model;
use crate::{model, report};
use history::Turnover;
use observer::Observer;
use plan::TurnoverPlan;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Turnover of one policy over a text.
#[derive(Debug, Serialize)]
struct TurnoverRow {
    /// Model file or shape.
    model: String,
    /// Adapter that computed queries and keys.
    device: String,
    /// Number of tokens of the text.
    tokens: u32,
    /// Number of decode steps, each with a token of the text.
    steps: u32,
    /// SPEC of the policy.
    policy: String,
    #[serde(flatten)]
    turnover: Turnover,
}

/// Name of the built-in plan.
const NAME: &str = "turnover";

/// Whether a text calls itself a plan of turnover.
pub(super) fn names(plan: &str) -> bool {
    plans::is_called(plan, "Turnover")
}

/// Whether `--plan` is the name of the built-in plan, or the path of one.
pub(super) fn is_planned(plan: &Path) -> bool {
    plan == Path::new(NAME) || fs::read_to_string(plan).is_ok_and(|text| names(&text))
}

/// Checks the text of a plan.
pub(super) fn check(plan: &str) -> Result<()> {
    TurnoverPlan::parse(plan).map(drop)
}

/// Runs the suite.
pub(super) fn run(args: &BenchArgs, registry: &Registry) -> Result<()> {
    let plan = TurnoverPlan::read(args.plan.as_deref().filter(|path| *path != Path::new(NAME)))?;
    let build = |policy: &String| {
        let spec = policy.parse().with_context(|| format!("policy {policy}"))?;
        let built = registry.build(&spec).with_context(|| format!("policy {policy}"))?;
        Ok((policy.clone(), Arc::from(built)))
    };
    let policies = plan.policies.iter().map(build).collect::<Result<Vec<_>>>()?;
    let observer = Arc::new(Observer::new(policies)?);
    let model = open_model(&args.engine)?;
    let ids = match model.tokenizer {
        Some(_) => text_ids(&plan.text, &model)?,
        // A model of random weights: any tokens are text to it.
        None => {
            let mut random = StdRng::seed_from_u64(0);
            (0..plan.text.tokens).map(|_| random.random_range(0..model.config.vocab_size)).collect()
        }
    };
    let device = watch(args, &plan, &model, &ids, &observer)?;
    let row = |(policy, turnover)| TurnoverRow {
        model: name(&args.engine),
        device: device.clone(),
        tokens: plan.text.tokens,
        steps: plan.text.tokens - plan.text.decode_from,
        policy,
        turnover,
    };
    let rows: Vec<TurnoverRow> = observer.turnovers().into_iter().map(row).collect();
    if let Some(folder) = &args.out {
        page::write(folder, "turnover.json", &rows)?;
    }
    if args.json {
        let mut out = io::stdout().lock();
        rows.iter().try_for_each(|row| report::json_line(&mut out, row))?;
        return Ok(());
    }
    print(&rows);
    Ok(())
}

/// Runs the text through the model, densely, with the observer in every decode step. Returns the adapter's name.
fn watch(
    args: &BenchArgs,
    plan: &TurnoverPlan,
    model: &Model,
    ids: &[u32],
    observer: &Arc<Observer>,
) -> Result<String> {
    let engine = EngineArgs { chunk: plan.chunk, sparse: None, ..args.engine.clone() };
    let policy = Arc::clone(observer);
    let sparse = Sparse::of(policy, "observer".parse()?).place(SelectionPlace::Host);
    let options = EngineOptions::from(&engine).demand(Demand::one(plan.text.tokens.into())).sparse(sparse);
    let mut decoder = model::load(&options, model)?;
    let device = decoder.gpu().info().name.clone();
    let mut sequence = Sequence::new(&mut decoder, plan.chunk)?;
    sequence.extend(ids);
    let bar = Template::TOKENS.bar(Some(ids.len()));
    let prompt = plan.text.decode_from as usize;
    while sequence.pending() > 0 {
        let done = ids.len() - sequence.pending();
        let (rows, phase) = match prompt.saturating_sub(done) {
            0 => (1, Phase::Decode),
            left => (left.min(sequence.chunk()), Phase::Prefill),
        };
        sequence.step(rows, StepWork::nothing(phase))?;
        bar.inc(rows as u64);
    }
    bar.finish_and_clear();
    Ok(device)
}

/// Names the model.
fn name(engine: &EngineArgs) -> String {
    match (&engine.random, &engine.model) {
        (Some(random), _) => random.to_string(),
        (None, Some(path)) => path.file_name().unwrap_or(path.as_os_str()).display().to_string(),
        (None, None) => crate::default_model::PACKAGE.name.into(),
    }
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn print(rows: &[TurnoverRow]) {
    println!(
        "{:52} {:>7} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "policy", "blocks", "density", "mean", "p50", "p90", "of 4", "of 16", "least", "most"
    );
    for TurnoverRow { policy, turnover: t, .. } in rows {
        let heads = || t.layers.iter().flatten().copied();
        println!(
            "{policy:52} {:7.1} {:8.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3}",
            t.blocks,
            t.density,
            t.mean,
            t.p50,
            t.p90,
            t.last_4,
            t.last_16,
            heads().reduce(f64::min).unwrap_or(0.0),
            heads().reduce(f64::max).unwrap_or(0.0),
        );
    }
    for TurnoverRow { policy, turnover, .. } in rows {
        let of_layer = |heads: &Vec<f64>| match heads.len() {
            0 => "-".into(),
            n => format!("{:.2}", heads.iter().sum::<f64>() / n as f64),
        };
        let layers: Vec<String> = turnover.layers.iter().map(of_layer).collect();
        println!("{policy}: by layer: {}", layers.join(" "));
    }
}
