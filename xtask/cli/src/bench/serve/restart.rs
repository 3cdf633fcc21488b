//! The cost of a restart: the time to the first token of prompts that a server has never seen, of the same prompts at once
//! again, and of the same prompts after `kill -9`, when their KV is on disk or in the store that `--kv-tiers` names.

mod plan;
mod server;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pagoda::EngineOptions;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use tokio::runtime;

use self::plan::RestartPlan;
use self::server::Server;
use super::{Answer, LoadPrompt};
use crate::bench::median::Median;
use crate::bench::page;
use crate::cli::{BenchServeArgs, PromptForm};
use crate::open_model::open_model;
use crate::report;

/// Times of prompts of one length.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RestartRow {
    adapter: String,
    pub(super) prompt_tokens: u32,
    /// Time to the first token of a new prompt.
    pub(super) cold_ms: Median,
    /// Time to the first token of the prompt sent again at once.
    pub(super) warm_ms: Median,
    /// Time to the first token of the prompt after `kill -9` and a restart.
    pub(super) restored_ms: Median,
    /// Number of prompt tokens whose KV came from the disk or the store after the restart; the minimum of all
    /// repeats.
    restored_tokens: u64,
    /// Seconds from the start of the process to the first answer to `/health`: the first and the second time.
    start_s: [f64; 2],
}

/// Tiers that outlive a process.
const KEPT: [&str; 2] = ["disk", "remote"];

/// Name of the built-in plan.
const NAME: &str = "restart";

/// Checks the text of a plan.
///
/// # Errors
/// A text that is none, and values out of range.
pub fn check(plan: &str) -> Result<()> {
    RestartPlan::parse(plan).map(drop)
}

/// Runs the suite.
pub(super) fn run(args: &BenchServeArgs) -> Result<()> {
    let model = open_model(&args.engine)?;
    let gpu = model.gpu(&EngineOptions::from(&args.engine))?;
    let file = args.plan.as_deref().filter(|path| *path != Path::new(NAME));
    let plan = RestartPlan::read(file, gpu.is_cpu())?;
    plan.fits(model.config.context_length)?;
    let bench = Bench { args, plan, vocab: model.config.vocab_size, adapter: gpu.info().name.clone() };
    drop((model, gpu));
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let rows = runtime.block_on(bench.measure())?;
    rows.iter().try_for_each(|row| row.print(args.json))?;
    if let Some(folder) = &args.out {
        page::write(folder, "restart.json", &rows)?;
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a BenchServeArgs,
    plan: RestartPlan,
    vocab: u32,
    adapter: String,
}

impl Bench<'_> {
    async fn measure(&self) -> Result<Vec<RestartRow>> {
        let folder = tempfile::tempdir()?;
        let prompts = self.prompts(0);
        let first = Server::start(self.args, folder.path()).await?;
        self.warm_up(&first, 1).await?;
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for prompt in prompts.iter().flatten() {
            cold.push(ask(&first, prompt).await?);
            warm.push(ask(&first, prompt).await?);
        }
        first.written().await?;
        let first_start = first.start_s;
        first.kill()?;
        let second = Server::start(self.args, folder.path()).await?;
        self.warm_up(&second, 2).await?;
        let mut restored = Vec::new();
        for prompt in prompts.iter().flatten() {
            restored.push(ask(&second, prompt).await?);
        }
        let start_s = [first_start, second.start_s];
        second.kill()?;
        let repeats = self.plan.repeats as usize;
        let of =
            |answers: &[Answer], at: usize| -> Vec<Answer> { answers[at * repeats..][..repeats].to_vec() };
        let row = |(at, tokens): (usize, &u32)| {
            RestartRow::new(&self.adapter, *tokens, [&cold, &warm, &restored].map(|all| of(all, at)), start_s)
        };
        self.plan.prompts.iter().enumerate().map(row).collect()
    }

    /// Random prompts, `[lengths][repeats]`.
    fn prompts(&self, salt: u64) -> Vec<Vec<LoadPrompt>> {
        let mut random = StdRng::seed_from_u64(self.plan.seed.wrapping_add(salt << 32));
        let mut prompt = |tokens: u32| {
            let ids: Vec<u32> = (0..tokens).map(|_| random.random_range(0..self.vocab)).collect();
            LoadPrompt::new(PromptForm::Ids, &ids)
        };
        self.plan
            .prompts
            .iter()
            .map(|tokens| (0..self.plan.repeats).map(|_| prompt(*tokens)).collect())
            .collect()
    }

    /// Sends other prompts of the same lengths, which pay for compiling shaders.
    async fn warm_up(&self, server: &Server, salt: u64) -> Result<()> {
        for prompts in self.prompts(salt) {
            ask(server, &prompts[0]).await?;
        }
        Ok(())
    }
}

async fn ask(server: &Server, prompt: &LoadPrompt) -> Result<Answer> {
    let answer = server.client.ask(prompt, 2, Instant::now()).await;
    ensure!(answer.error.is_none(), "the server failed: {}", answer.error.unwrap_or_default());
    ensure!(answer.first_ms.is_some(), "the server answered without a token");
    // Blocks are saved behind a request, which must not lengthen the next one.
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(answer)
}

impl RestartRow {
    /// Takes the answers to the prompts of one length: cold, warm and restored.
    fn new(adapter: &str, prompt_tokens: u32, answers: [Vec<Answer>; 3], start_s: [f64; 2]) -> Result<Self> {
        let cached = |answer: &Answer| answer.cached_tokens.unwrap_or(0);
        let [cold, warm, restored] = &answers;
        ensure!(cold.iter().all(|answer| cached(answer) == 0), "a new prompt was found in a cache");
        ensure!(warm.iter().all(|answer| cached(answer) > 0), "a repeated prompt was not found in the cache");
        let kept =
            |answer: &Answer| KEPT.iter().map(|tier| answer.tiers[*tier].as_u64().unwrap_or(0)).sum::<u64>();
        let median = |answers: &[Answer]| Median::of(answers.iter().filter_map(|answer| answer.first_ms));
        Ok(Self {
            adapter: adapter.to_owned(),
            prompt_tokens,
            cold_ms: median(cold),
            warm_ms: median(warm),
            restored_ms: median(restored),
            restored_tokens: restored.iter().map(kept).min().unwrap_or(0),
            start_s,
        })
    }

    #[expect(clippy::print_stdout, reason = "the command's result")]
    fn print(&self, json: bool) -> Result<()> {
        if json {
            return Ok(report::json_line(&mut io::stdout().lock(), self)?);
        }
        println!(
            "{:6} tokens: first token cold {:9.1} ms, restored {:9.1} ms ({} tokens from tiers), warm {:9.1} ms",
            self.prompt_tokens,
            self.cold_ms.median,
            self.restored_ms.median,
            self.restored_tokens,
            self.warm_ms.median
        );
        Ok(())
    }
}
