//! Sparse policies on a real model: likelihood of a text, needles by length and depth, density, bytes and
//! times, each compared with dense attention on the same engine.

mod cell;
mod lengths;
mod plan;
mod scores;
mod summary;
mod turnover;

use std::fs;
use std::io;

use anyhow::{Context, Result};
use attn_kernels::gpu::Gpu;
use models::Pipeline;
use pagoda::{Demand, EngineOptions, Model, Registry, Sparse};
use pagoda_cli::bench::policies::cells::{Cells, Kept as _};
use pagoda_cli::bench::policies::runner::{self, Score, SequencePlan};
use pagoda_cli::bench::policies::{self as shared, GPL, report, ruler};
use pagoda_cli::progress::Template;

use super::page;
use crate::cli::{BenchArgs, EngineArgs};
use crate::open_model::open_model;
use crate::{model, report as out};
use cell::{Cell, Phase};
use plan::{Plan, Text};

/// Report of a step about the selections of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// The selected blocks.
    Blocks,
    /// The share of dense attention's mass in the selected blocks; selects on the host.
    Worth,
}

/// A cell to run: its sequence, and how to run it.
struct Job {
    cell: Cell,
    ids: Vec<u32>,
    sequence: SequencePlan,
    watch: Watch,
    expected: Vec<String>,
}

/// Checks the text of a plan.
pub(super) fn check(plan: &str) -> Result<()> {
    if report::names(plan) {
        return report::check(plan);
    }
    if turnover::names(plan) { turnover::check(plan) } else { Plan::parse(plan).map(drop) }
}

/// Runs the suite.
pub(super) fn run(args: &BenchArgs, registry: &Registry) -> Result<()> {
    if args.report.is_some() {
        return shared::run(&args.policies(), registry);
    }
    if args.plan.as_deref().is_some_and(turnover::is_planned) {
        return turnover::run(args, registry);
    }
    let gpu = Gpu::open(&args.engine.gpu())?;
    let mut plan = Plan::read(args.plan.as_deref(), gpu.is_cpu())?;
    let sparse = |policy: &String| {
        let spec = policy.parse().with_context(|| format!("policy {policy}"))?;
        Sparse::new(registry, &spec).with_context(|| format!("policy {policy}"))
    };
    let policies = plan.policies.iter().map(sparse).collect::<Result<Vec<Sparse>>>()?;
    let model = open_model(&args.engine)?;
    for (policy, sparse) in plan.policies.iter().zip(&policies) {
        model.check_sparse(sparse, args.engine.block_size).with_context(|| format!("policy {policy}"))?;
    }
    fit(&mut plan, model.config.context_length)?;
    let setup = shared::setup(&EngineArgs { chunk: plan.chunk, ..args.engine.clone() }, &model, &gpu)?;
    drop(gpu);
    let kept = args.out.as_ref().map(|folder| Cells::<Cell>::at(folder.join("policies.jsonl")));
    let mut cells = kept.transpose()?.unwrap_or_default();
    let jobs = jobs(&plan, &model, &setup)?;
    let bar = Template::CELLS.bar(Some(plan.policies.len() * jobs.len()));
    let mut rows = Vec::new();
    for (policy, sparse) in plan.policies.iter().zip(&policies) {
        // A policy whose cells were all measured before needs no model on the device.
        let mut decoder: Option<(Watch, Pipeline, u64)> = None;
        for job in &jobs {
            if job.watch == Watch::Worth && policy == "full" {
                bar.inc(1);
                continue;
            }
            let cell = Cell { policy: policy.clone(), ..job.cell.clone() };
            bar.set_message(format!("{policy}, {}", cell.task));
            let done = match cells.get(&cell.key()) {
                Some(done) => done.clone(),
                None => {
                    if decoder.as_ref().is_none_or(|(watch, ..)| *watch != job.watch) {
                        decoder = None;
                    }
                    let (_, decoder, block_bytes) = match &mut decoder {
                        Some(open) => open,
                        none => none.insert(open(args, &plan, &model, sparse, job.watch)?),
                    };
                    let done = measure(decoder, *block_bytes, &model, job, cell)
                        .with_context(|| format!("{policy}, {}", job.cell.task))?;
                    cells.put(done.clone())?;
                    done
                }
            };
            if args.json {
                out::json_line(&mut io::stdout().lock(), &done)?;
            }
            rows.push(done);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if !args.json {
        print(&rows, &plan);
    }
    if let Some(folder) = &args.out {
        page::write(folder, "policies.json", &summary::results(&setup, &rows, &plan.policies)?)?;
    }
    Ok(())
}

/// Leaves out the sequences that do not fit in a context, and reports them.
fn fit(plan: &mut Plan, context: u32) -> Result<()> {
    let shortest = plan.shortest();
    for tokens in plan.leave_out_beyond(context) {
        eprintln!("{tokens} tokens: left out, the context length is {context}");
    }
    anyhow::ensure!(
        plan.longest() > 0,
        "the shortest sequence has {shortest} tokens, the context length is {context}"
    );
    Ok(())
}

/// Opens an engine with a policy. The last value is the number of bytes of one of the policy's blocks per KV head and
/// layer.
fn open(
    args: &BenchArgs,
    plan: &Plan,
    model: &Model,
    sparse: &Sparse,
    watch: Watch,
) -> Result<(Watch, Pipeline, u64)> {
    let engine = EngineArgs { sparse: Some(sparse.clone().into()), chunk: plan.chunk, ..args.engine.clone() };
    let mut options = EngineOptions::from(&engine).demand(Demand::one(plan.longest().into()));
    let sparse = options.sparse.as_mut().expect("the arguments name a policy");
    (sparse.trace, sparse.measure) = (watch == Watch::Blocks, watch == Watch::Worth);
    // Where steps are timed a certificate would count as selection.
    sparse.certify = watch == Watch::Worth && sparse.policy.certifies();
    let block = sparse.policy.block_size().get();
    let decoder = model::load(&options, model)?;
    decoder.gpu().time_dispatches(true);
    let shape = decoder.first().kv().shape();
    let bytes = 2 * u64::from(block * shape.head_dim) * u64::from(shape.dtype.bytes());
    Ok((watch, decoder, bytes))
}

/// Every text and needle of the plan.
fn jobs(plan: &Plan, model: &Model, setup: &str) -> Result<Vec<Job>> {
    let cell = |kind: &str, task, tokens, depth| Cell {
        setup: setup.into(),
        policy: String::new(),
        kind: kind.into(),
        task,
        tokens,
        length: None,
        depth,
        mean_nll: None,
        found: None,
        answer: None,
        prefill: Phase::default(),
        decode: Phase::default(),
        selected: Vec::new(),
    };
    let mut jobs = Vec::new();
    let of_texts = |kind: &str, texts: &[Text], watch| -> Result<Vec<Job>> {
        let job = |text: &Text| {
            let ids = text_ids(text, model)?;
            let name = text.file.as_ref().map_or("gpl-3".into(), |file| file.display().to_string());
            let task = format!("{kind} {name}, {} tokens, decode from {}", text.tokens, text.decode_from);
            let score = if watch == Watch::Blocks { Score::All } else { Score::Nothing };
            let sequence =
                SequencePlan { chunk: plan.chunk, decode_from: text.decode_from, generate: 0, score };
            Ok(Job { cell: cell(kind, task, text.tokens, None), ids, sequence, watch, expected: Vec::new() })
        };
        texts.iter().map(job).collect()
    };
    jobs.extend(of_texts("text", &plan.texts, Watch::Blocks)?);
    for needles in plan.prompts() {
        let depths: Vec<Option<f64>> = match &needles.depths[..] {
            [] => vec![None],
            depths => depths.iter().copied().map(Some).collect(),
        };
        for (length, depth) in
            needles.lengths.iter().flat_map(|length| depths.iter().map(move |d| (*length, *d)))
        {
            for seed in 0..needles.samples {
                let task = needles.task;
                let prompt = ruler::prompt(model, task, length, depth, seed.into())?;
                let tokens = u32::try_from(prompt.ids.len())?;
                let sequence = SequencePlan {
                    chunk: plan.chunk,
                    decode_from: tokens,
                    generate: task.answer_tokens(),
                    score: Score::Nothing,
                };
                let at = depth.map_or(String::new(), |depth| format!(", depth {depth}"));
                let of = format!("{}, {length} tokens{at}, seed {seed}", task.name());
                let cell = Cell { length: Some(length), ..cell(task.name(), of, tokens, depth) };
                let watch = Watch::Blocks;
                jobs.push(Job { cell, ids: prompt.ids, sequence, watch, expected: prompt.expected });
            }
        }
    }
    jobs.extend(of_texts("recall", &plan.recalls, Watch::Worth)?);
    Ok(jobs)
}

/// The first tokens of a text.
fn text_ids(text: &Text, model: &Model) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer.as_ref().context("the model has no tokenizer: policies run on texts")?;
    let mut ids = match &text.file {
        Some(path) => {
            let read = fs::read_to_string(path);
            tokenizer.encode(&read.with_context(|| format!("{}: cannot be read", path.display()))?, true)?
        }
        None => tokenizer.encode(GPL, true)?,
    };
    let (got, wanted) = (ids.len(), text.tokens as usize);
    anyhow::ensure!(got >= wanted, "the text has {got} tokens, {wanted} are wanted");
    ids.truncate(wanted);
    Ok(ids)
}

fn measure(
    decoder: &mut Pipeline,
    block_bytes: u64,
    model: &Model,
    job: &Job,
    mut cell: Cell,
) -> Result<Cell> {
    let ran = runner::run(decoder, &job.ids, job.sequence)?;
    if let (Some(tokenizer), true) = (&model.tokenizer, job.sequence.generate > 0) {
        let answer = tokenizer.decode(&ran.generated, true)?;
        cell.found = Some(ruler::found(&answer, &job.expected));
        cell.answer = Some(answer);
    }
    let mut cell = cell.measured(&ran, block_bytes);
    if cell.kind != "text" {
        // One drawing per policy is enough.
        cell.selected.clear();
    }
    Ok(cell)
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn print(rows: &[Cell], plan: &Plan) {
    println!(
        "{:44} {:>9} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>7} {:>9} {:>10} {:>10}",
        "policy",
        "nll",
        "loss",
        "prefill",
        "decode",
        "a head",
        "recall",
        "bound",
        "pass key",
        "needles",
        "ms a token",
        "attend us",
        "select us"
    );
    for row in summary::summaries(rows, &plan.policies) {
        println!("{row}");
    }
    for row in scores::scores(rows, &plan.policies) {
        println!("{row}");
    }
    for row in lengths::by_length(rows) {
        println!("{row}");
    }
    for (policy, layers) in summary::layers(rows) {
        let layers: Vec<String> = layers.iter().map(|density| format!("{density:.2}")).collect();
        println!("{policy}: density of decode by layer: {}", layers.join(" "));
    }
}
