//! Load over HTTP: requests arrive as in production, at this machine's own server or at any other that speaks OpenAI's API.

mod answer;
mod client;
mod load;
mod own;
mod prompt;
pub mod restart;
mod row;
mod sse;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagoda::EngineOptions;
use tokio::runtime;

use self::load::Sent;
use self::own::Own;
use self::row::{ServeRow, Setting};
use super::page;
use super::workload::{self, Turn, Workload};
use crate::cli::{BenchServeArgs, EngineArgs, PromptForm, ServedArgs};
use crate::devices;
use crate::open_model::open_model;

use answer::Answer;
use client::Client;
use prompt::LoadPrompt;

/// Number of token ids that prompts draw from if the vocabulary of a server is not known. The lowest ids are often
/// control tokens.
const FOREIGN_IDS: u32 = 1000;

/// Runs the suite.
///
/// # Errors
/// Errors of the model and the device, and if a server cannot be reached or fails every request.
pub fn run(args: &BenchServeArgs) -> Result<()> {
    if args.plan.is_some() {
        return restart::run(args);
    }
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(measure(args));
    // Tasks of the server hold the device: see `serve::run`.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let rows = rows?;
    if let Some(folder) = &args.out {
        page::write(folder, "serve.json", &rows.iter().map(ServeRow::whole).collect::<Result<Vec<_>>>()?)?;
    }
    Ok(())
}

async fn measure(args: &BenchServeArgs) -> Result<Vec<ServeRow>> {
    let read = |path| workload::read(path);
    let given = args.workload.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    if let Some(url) = &args.served.url {
        let key = key(&args.served)?;
        let workloads = if given.is_empty() { workload::builtin(false)? } else { given };
        let bench = Bench { args, form: args.served.form.unwrap_or_default(), vocab: FOREIGN_IDS };
        for workload in workloads {
            let client = Client::connect(url, key.as_deref(), &bench.probe()).await?;
            bench.loads(&workload, &client, None, &mut rows).await?;
        }
        return Ok(rows);
    }
    let model = open_model(&args.engine)?;
    let mut first = EngineOptions::from(&args.engine);
    first.device =
        devices::of_engines(args.engine.device.as_deref(), args.engine.split.as_ref())?.swap_remove(0);
    let software = model.gpu(&first)?.is_cpu();
    let workloads = if given.is_empty() { workload::builtin(software)? } else { given };
    let context = u64::from(model.config.context_length);
    for workload in &workloads {
        let longest = workload.longest();
        ensure!(
            longest <= context,
            "workload {}: the longest request has {longest} tokens, the context length is {context}",
            workload.name
        );
    }
    let form = args.served.form.unwrap_or_else(|| own::form_of(&model));
    let bench = Bench { args, form, vocab: model.config.vocab_size };
    for workload in workloads {
        let blocks = args.engine.kv_blocks.or(workload.kv_blocks.filter(|_| args.engine.kv_memory.is_none()));
        let engine = EngineArgs { kv_blocks: blocks, ..args.engine.clone() };
        let own = Own::start(&engine, &model).await?;
        let client = Client::connect(&format!("http://{}/v1", own.address), None, &bench.probe()).await?;
        bench.loads(&workload, &client, Some(&own), &mut rows).await?;
        own.stop().await;
    }
    Ok(rows)
}

/// The key in the variable that `--api-key-env` names.
fn key(args: &ServedArgs) -> Result<Option<String>> {
    let read = |name: &String| std::env::var(name).with_context(|| format!("--api-key-env {name}"));
    args.api_key_env.as_ref().map(read).transpose()
}

/// Loads that are sent to one server after another.
struct Bench<'a> {
    args: &'a BenchServeArgs,
    form: PromptForm,
    /// Number of token ids.
    vocab: u32,
}

impl Bench<'_> {
    /// A prompt that every server must take.
    fn probe(&self) -> LoadPrompt {
        LoadPrompt::new(self.form, &[1, 2, 3])
    }

    /// Measures a workload at its own rate, or at the rates of the sweep.
    async fn loads(
        &self,
        workload: &Workload,
        client: &Client,
        own: Option<&Own>,
        rows: &mut Vec<ServeRow>,
    ) -> Result<()> {
        let ServedArgs { url, slo, rates, seed, .. } = &self.args.served;
        let setting = Setting {
            url: url.clone(),
            model: client.model.clone(),
            form: self.form,
            adapter: own.map(|own| own.adapter.clone()),
            slo: *slo,
        };
        let loads = match rates.as_slice() {
            [] => vec![workload.clone()],
            rates => rates.iter().map(|rate| workload.at_rate(*rate)).collect(),
        };
        self.warm_up(workload, client).await?;
        for (salt, load) in (2..).zip(loads) {
            // Each rate has prompts of its own, so that none finds those of another in the prefix cache.
            let sent = self.send(&load, client, seed.wrapping_mul(0x1_0000).wrapping_add(salt));
            let (sent, lost) = tokio::join!(sent, async {
                match own.zip(self.args.served.lose) {
                    Some((own, loss)) => own.lose(loss).await,
                    None => Ok(()),
                }
            });
            lost?;
            let sent = sent?;
            let row = ServeRow::new(&setting, &load.name, load.rate(), sent);
            ensure!(
                row.sent.iter().any(|sent| sent.answer.error.is_none()),
                "workload {}: all requests failed: {}",
                load.name,
                row.sent[0].answer.error.as_deref().unwrap_or_default()
            );
            row.print(self.args.json)?;
            rows.push(row);
        }
        Ok(())
    }

    async fn send(&self, load: &Workload, client: &Client, salt: u64) -> Result<Vec<Sent>> {
        let think = Duration::from_secs_f64(load.turns.map_or(0.0, |turns| turns.think_s));
        let trace = load.trace(prompt::vocab(self.form, self.vocab), salt);
        load::run(client, trace, self.form, think).await
    }

    /// Sends another trace with the same lengths, all at once and of two tokens each: servers compile shaders and open
    /// connections.
    async fn warm_up(&self, workload: &Workload, client: &Client) -> Result<()> {
        let mut trace = workload.trace(prompt::vocab(self.form, self.vocab), 1);
        for arrival in &mut trace {
            arrival.at_s = 0.0;
            // A long prompt in place of turns.
            let later = std::mem::take(&mut arrival.turns);
            arrival.prompt.extend(later.into_iter().flat_map(|Turn { prompt, .. }| prompt));
            arrival.output = arrival.output.min(2);
        }
        let begun = Instant::now();
        load::run(client, trace, self.form, Duration::ZERO).await?;
        eprintln!("{}: warmed up in {:.1} s", workload.name, begun.elapsed().as_secs_f64());
        Ok(())
    }
}
