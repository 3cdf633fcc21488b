//! The report of `bench policies`: loss and speed of every policy on the user's model and device, at several lengths and with
//! several KV types, as a page with curves and recommendations. `--sparse auto` goes by the same measurements.

mod plan;
mod results;
pub(super) mod row;
mod table;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use attn_kernels::gpu::Gpu;
use models::{Attended, Pipeline, Tokenizer};
use pagoda::measured::{self, LossLimit, Measurement, Measurements, fastest_within};
use pagoda::{Demand, EngineOptions, KvDtype, Model, Preemption, Registry, Sparse};
use serde::Serialize;

use super::cells::{Cells, Kept as _};
use super::ruler::{self, Task, TaskPrompt};
use super::runner::{self, Score, SequencePlan, Steps};
use crate::bench::measure::{self, Batch, count};
use crate::bench::page::{self, Shown};
use crate::cli::{BenchPoliciesArgs, EngineArgs};
use crate::progress::Template;
use crate::{model, report as out};
use plan::{ReportPlan, spec_at};
use row::{Answers, DENSE, PolicyRow};

pub use plan::{check, names};

/// The text whose likelihood is measured if no file is named: see the folder texts.
const TEXT: &str = include_str!("../../../texts/opticks.txt");

/// Number of runs of a timed request; the fastest counts.
const RUNS: usize = 2;

/// Limits of loss, in per cent, that the page recommends policies for.
const LIMITS: [f64; 4] = [0.1, 0.5, 1.0, 2.0];

/// Measures a plan, and writes the page.
pub(super) fn run(args: &BenchPoliciesArgs, registry: &Registry, model: &Arc<Model>) -> Result<()> {
    let software = model.gpu(&EngineOptions::from(&args.engine))?.is_cpu();
    let plan = ReportPlan::read(args.plan.as_deref(), software)?;
    let bench = Bench::new(&args.engine, registry, model, plan, args.text.as_deref())?;
    let path = match &args.report {
        Some(Some(file)) => file.clone(),
        _ => args.out.as_deref().unwrap_or(Path::new("")).join("report.html"),
    };
    let rows = bench.rows(&mut Cells::at(path.with_extension("jsonl"))?)?;
    for row in rows.iter().filter(|_| args.json) {
        out::json_line(&mut io::stdout().lock(), row)?;
    }
    if !args.json {
        table::print(&rows, &bench.kv_dtypes());
    }
    let data = results::results(&bench.facts()?, &rows, &bench.kv_dtypes());
    let json = path.with_extension("json");
    page::save(&json, &serde_json::to_string_pretty(&data)?)?;
    let file = json.file_name().unwrap_or_default().to_string_lossy().into_owned();
    page::save(&path, &page::page(&[Shown { suite: "report", file, data }])?)?;
    eprintln!("{}: the page; {}: what was measured", path.display(), path.with_extension("jsonl").display());
    let mut kept = Measurements::of_this_user();
    for (kv_dtype, measurement) in bench.measurements(&rows) {
        kept.put(bench.key(kv_dtype)?, measurement);
    }
    // The page is there all the same.
    if let Err(error) = kept.save() {
        eprintln!("--sparse auto will not find these measurements: {error}");
    }
    Ok(())
}

/// Measures the policies of a short plan for `--sparse auto`.
///
/// # Errors
/// Errors of the model and the device.
pub(crate) fn measure_short(
    args: &EngineArgs,
    registry: &Registry,
    model: &Arc<Model>,
) -> Result<Measurement> {
    let bench = Bench::new(args, registry, model, ReportPlan::short()?, None)?;
    let rows = bench.rows(&mut Cells::default())?;
    let mut all = bench.measurements(&rows);
    ensure!(!all.is_empty(), "the model refuses every policy");
    Ok(all.swap_remove(0).1)
}

/// A model on a device, and its measurements.
struct Bench<'a> {
    engine: EngineArgs,
    registry: &'a Registry,
    model: &'a Arc<Model>,
    gpu: Arc<Gpu>,
    plan: ReportPlan,
    lengths: Vec<u32>,
    text: Text,
    asked: Vec<Asked>,
}

/// A prompt of a task, for all policies and KV types.
struct Asked {
    /// Length in tokens of the row that the prompt belongs to.
    tokens: u32,
    task: Task,
    prompt: TaskPrompt,
}

/// Tokens whose likelihood is measured.
struct Text {
    name: String,
    ids: Vec<u32>,
}

/// Circumstances of the measurements, for the page.
#[derive(Debug, Serialize)]
struct Facts {
    model: String,
    fingerprint: String,
    device: String,
    driver: String,
    text: String,
    /// Number of tokens whose likelihood was taken; the next field is the number of tokens of a timed answer.
    scored: u32,
    answer: u32,
    tasks: Vec<&'static str>,
    date: String,
    program: String,
    command: String,
}

#[cfg(test)]
impl Facts {
    fn example() -> Self {
        Self {
            model: "a & b".into(),
            fingerprint: "00ff".into(),
            device: "a card".into(),
            driver: "1.0".into(),
            text: "Opticks".into(),
            scored: 512,
            answer: 256,
            tasks: vec!["vt"],
            date: "2026-11-26".into(),
            program: "Pagoda".into(),
            command: "pagoda bench policies --report".into(),
        }
    }
}

impl<'a> Bench<'a> {
    fn new(
        engine: &EngineArgs,
        registry: &'a Registry,
        model: &'a Arc<Model>,
        plan: ReportPlan,
        text: Option<&Path>,
    ) -> Result<Self> {
        let engine = EngineArgs { sparse: None, kv_tiers: None, quiet: true, ..engine.clone() };
        let gpu = model.gpu(&EngineOptions::from(&engine))?;
        let (lengths, beyond) = plan.lengths_within(model.config.context_length)?;
        for length in beyond {
            eprintln!("{length} tokens: left out, the context length is {}", model.config.context_length);
        }
        let longest = lengths.last().map_or(0, |length| length + plan.behind());
        let text = Text::read(text, model.tokenizer()?, longest)?;
        let mut asked = Vec::new();
        for tokens in &lengths {
            for (task, seed) in plan.tasks.iter().flat_map(|task| (0..plan.samples).map(|seed| (*task, seed)))
            {
                let prompt = ruler::prompt(model, task, *tokens, None, seed.into())?;
                asked.push(Asked { tokens: *tokens, task, prompt });
            }
        }
        Ok(Self { engine, registry, model, gpu, plan, lengths, text, asked })
    }

    /// KV types of the plan, the engine's own first.
    fn kv_dtypes(&self) -> Vec<KvDtype> {
        let own = self.engine.kv_dtype;
        let others = self.plan.kv_dtypes.iter().copied().filter(|dtype| *dtype != own);
        [own].into_iter().chain(others).collect()
    }

    /// The engine's flags with a KV type and a policy.
    fn engine(&self, kv_dtype: KvDtype, policy: &str) -> Result<EngineArgs> {
        let sparse = if policy == DENSE { None } else { Some(self.sparse(policy)?.into()) };
        Ok(EngineArgs { kv_dtype, sparse, ..self.engine.clone() })
    }

    /// A policy that selects at every length, so that lengths at which an engine would be dense are measured too.
    fn sparse(&self, policy: &str) -> Result<Sparse> {
        Ok(Sparse::new(self.registry, &policy.parse::<pagoda::Spec>()?.or("min_tokens", 0))?)
    }

    /// The policies at a length, dense attention first; policies that the model refuses are reported and left out.
    fn policies(&self, tokens: u32) -> Result<Vec<String>> {
        let mut policies = vec![DENSE.to_owned()];
        for policy in &self.plan.policies {
            // What no length can have is wrong in the plan; some budgets are too small for short lengths.
            let any = spec_at(policy, 1 << 20)?;
            self.sparse(&any).with_context(|| format!("policy {policy}"))?;
            let spec = spec_at(policy, tokens)?;
            let suits = self
                .sparse(&spec)
                .and_then(|sparse| Ok(self.model.check_sparse(&sparse, self.engine.block_size)?));
            match suits {
                Ok(()) => policies.push(spec),
                Err(error) => eprintln!("{spec}: left out: {}", pagoda::error_chain::joined(error.as_ref())),
            }
        }
        Ok(policies)
    }

    /// Measures every policy with every KV type at every length, unless it is in `cells`.
    fn rows(&self, cells: &mut Cells<PolicyRow>) -> Result<Vec<PolicyRow>> {
        let mut jobs = Vec::new();
        for tokens in &self.lengths {
            let policies = self.policies(*tokens)?;
            jobs.extend(policies.into_iter().map(|policy| (*tokens, policy)));
        }
        let kv_dtypes = self.kv_dtypes();
        let bar = Template::CELLS.bar(Some(jobs.len() * kv_dtypes.len()));
        let mut rows = Vec::new();
        for kv_dtype in kv_dtypes {
            let setup = self.setup(kv_dtype)?;
            for (tokens, policy) in &jobs {
                bar.set_message(format!("{policy}, KV {kv_dtype:?}, {tokens} tokens"));
                let key = (setup.clone(), kv_dtype, *tokens, policy.clone());
                let row = match cells.get(&key) {
                    Some(row) => row.clone(),
                    None => {
                        let row = self.measure(setup.clone(), kv_dtype, *tokens, policy);
                        let row =
                            row.with_context(|| format!("{policy}, KV {kv_dtype:?}, {tokens} tokens"))?;
                        debug_assert!(row.key() == key, "a row is found again under its key");
                        cells.put(row.clone())?;
                        row
                    }
                };
                rows.push(row);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Everything that a row depends on except its own keys.
    fn setup(&self, kv_dtype: KvDtype) -> Result<String> {
        let engine = EngineArgs { kv_dtype, ..self.engine.clone() };
        let ReportPlan { scored, answer, tasks, samples, .. } = &self.plan;
        let mut ids = DefaultHasher::new();
        self.text.ids.hash(&mut ids);
        Ok(format!(
            "{}; text {:016x}, {scored} scored, answers of {answer}, {tasks:?} x {samples}",
            super::setup(&engine, self.model, &self.gpu)?,
            ids.finish()
        ))
    }

    fn measure(&self, setup: String, kv_dtype: KvDtype, tokens: u32, policy: &str) -> Result<PolicyRow> {
        let engine = self.engine(kv_dtype, policy)?;
        let [prefill_tok_s, decode_tok_s, request_s] = self.speeds(&engine, tokens)?;
        let longest = u64::from(tokens + self.plan.behind());
        let options = EngineOptions::from(&engine).demand(Demand::one(longest));
        let mut decoder = model::load(&options, self.model)?;
        let ran = runner::run(
            &mut decoder,
            &self.text.ids[..(tokens + self.plan.scored) as usize],
            SequencePlan { chunk: engine.chunk, decode_from: tokens, generate: 0, score: Score::Decode },
        )?;
        let answers = self.answers(&mut decoder, engine.chunk, tokens)?;
        // The kernel that leaves keys out counts none.
        let counts = engine.policy().is_none_or(|sparse| sparse.policy.skips().is_none());
        let density = |steps: &Steps| counts.then(|| steps.attended.as_ref().map_or(1.0, Attended::density));
        Ok(PolicyRow {
            setup,
            kv_dtype,
            tokens,
            policy: policy.to_owned(),
            prefill_density: density(&ran.prefill),
            decode_density: density(&ran.decode),
            nll: ran.nll,
            prefill_tok_s,
            decode_tok_s,
            request_s,
            kv_bytes: ran.kv_bytes,
            answers,
        })
    }

    /// Tokens a second of prefill and decode, and the seconds of a request.
    fn speeds(&self, args: &EngineArgs, tokens: u32) -> Result<[f64; 3]> {
        let batch = Batch { streams: 1, prompt: tokens, output: self.plan.answer };
        let demand = Demand::one((tokens + self.plan.answer).into());
        let engine = model::engine(args, self.model, demand, Preemption::Recompute)?;
        let mut bench =
            measure::Bench { engine, chunk: args.chunk, seed: 0, text: Some(self.text.ids.clone()) };
        bench.warm_up(batch)?;
        let mut best = [0.0, 0.0, f64::INFINITY];
        for _ in 0..RUNS {
            let times = bench.measure(batch)?;
            let seconds = times.prefill_s + times.decode_s;
            if seconds < best[2] {
                let decode = count(times.tokens as u64) / times.decode_s;
                best = [f64::from(tokens) / times.prefill_s, decode, seconds];
            }
        }
        Ok(best)
    }

    /// Answers to the plan's tasks.
    fn answers(&self, decoder: &mut Pipeline, chunk: u32, tokens: u32) -> Result<Answers> {
        let mut answers = Answers::default();
        let tokenizer = self.model.tokenizer()?;
        for Asked { task, prompt, .. } in self.asked.iter().filter(|asked| asked.tokens == tokens) {
            let sequence = SequencePlan {
                chunk,
                decode_from: u32::try_from(prompt.ids.len())?,
                generate: task.answer_tokens(),
                score: Score::Nothing,
            };
            let ran = runner::run(decoder, &prompt.ids, sequence)?;
            answers.asked += 1;
            answers.found += ruler::found(&tokenizer.decode(&ran.generated, true)?, &prompt.expected);
            if ran.generated.last().is_some_and(|id| decoder.config().eos_ids.contains(id)) {
                answers.ended += 1;
                answers.ended_tokens += u32::try_from(ran.generated.len())?;
            }
        }
        Ok(answers)
    }

    /// Measures the policies of each KV type, and dense attention of the same type.
    fn measurements(&self, rows: &[PolicyRow]) -> Vec<(KvDtype, Measurement)> {
        let of_type = |kv_dtype: KvDtype| {
            let policies = table::sparse(rows, kv_dtype);
            (kv_dtype, Measurement { date: today(), text: self.text.name.clone(), policies })
        };
        let all = self.kv_dtypes().into_iter().map(of_type);
        all.filter(|(_, measurement)| !measurement.policies.is_empty()).collect()
    }

    /// The name under which measurements of a KV type are kept.
    fn key(&self, kv_dtype: KvDtype) -> Result<String> {
        let options = EngineOptions::from(&EngineArgs { kv_dtype, ..self.engine.clone() });
        Ok(measured::key(self.model.fingerprint()?, self.gpu.info(), &options))
    }

    fn facts(&self) -> Result<Facts> {
        let info = self.gpu.info();
        let flags = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        Ok(Facts {
            model: self.engine.label(),
            fingerprint: format!("{:032x}", self.model.fingerprint()?),
            device: format!("{}, {:?}, kernels of level {}", info.name, info.backend, self.gpu.level()),
            driver: format!("{} {}", info.driver, info.driver_info),
            text: self.text.name.clone(),
            scored: self.plan.scored,
            answer: self.plan.answer,
            tasks: self.plan.tasks.iter().map(|task| task.name()).collect(),
            date: today(),
            program: format!("Pagoda {}", env!("CARGO_PKG_VERSION")),
            command: format!("{} {flags}", program()),
        })
    }
}

impl Text {
    /// The first tokens of a file, or of the built-in text.
    fn read(file: Option<&Path>, tokenizer: &Tokenizer, tokens: u32) -> Result<Self> {
        let (name, text) = match file {
            None => ("Newton, Opticks".to_owned(), TEXT.to_owned()),
            Some(path) => {
                let text = fs::read_to_string(path);
                let text = text.with_context(|| format!("{}: cannot be read", path.display()))?;
                (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text)
            }
        };
        let mut ids = tokenizer.encode(&text, true)?;
        let (got, wanted) = (ids.len(), tokens as usize);
        ensure!(
            got >= wanted,
            "text {name} has {got} tokens, {wanted} are wanted; --text FILE takes another"
        );
        ids.truncate(wanted);
        Ok(Self { name, ids })
    }
}

/// Today's date, in UTC.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// Command that runs this program: its name, or cargo's in a checkout of the sources.
pub(crate) fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    match Path::new(&path).file_stem().map(|name| name.to_string_lossy()) {
        Some(name) if name == "xtask" => "cargo xtask".into(),
        Some(name) => name.into_owned(),
        None => "pagoda".into(),
    }
}

/// A sentence for each limit: the policy to take.
fn recommendations(
    measured: &[measured::MeasuredPolicy],
) -> Vec<(LossLimit, Option<&measured::MeasuredPolicy>)> {
    let limits = LIMITS.iter().filter_map(|per_cent| LossLimit::new(per_cent / 100.0));
    limits.map(|limit| (limit, fastest_within(measured, limit))).collect()
}
