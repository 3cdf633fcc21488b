//! Replays a trace of arrivals in real time and reports the latencies that users would have seen.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagoda::{Demand, Engine, Event, Model, Preemption, Request, SeqId};
use serde::Serialize;

use super::page;
use super::percentiles::Percentiles;
use super::workload::{Arrival, Workload};
use crate::cli::BenchArgs;
use crate::{model, report};

/// Measurements of a replay. The time of a token is the end of its step.
#[derive(Debug, Serialize)]
pub(super) struct Replay {
    workload: String,
    adapter: String,
    driver: String,
    level: String,
    requests: usize,
    prompt_tokens: usize,
    output_tokens: usize,
    duration_s: f64,
    requests_per_s: f64,
    output_tok_s: f64,
    /// Time from a request's arrival to its first token.
    ttft_ms: Percentiles,
    /// Time between consecutive tokens of a request.
    inter_token_ms: Percentiles,
    /// Time from a request's arrival to its last token.
    latency_ms: Percentiles,
    preemptions: u64,
    /// Share of the prompt tokens found in the prefix cache.
    hit_rate: f64,
    pool_blocks: u32,
    max_blocks: u32,
    usage: Vec<Usage>,
}

/// The load after a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Usage {
    pub(super) at_s: f64,
    /// Number of KV blocks in use.
    pub(super) blocks: u32,
    pub(super) running: usize,
    /// Number of requests that have arrived and are not running.
    pub(super) waiting: usize,
}

/// Measures one workload on a new engine, prints the report and writes the files.
pub(super) fn run(args: &BenchArgs, model: &Arc<Model>, workload: &Workload) -> Result<()> {
    let engine_args = crate::cli::EngineArgs {
        kv_blocks: args.engine.kv_blocks.or(workload.kv_blocks.filter(|_| args.engine.kv_memory.is_none())),
        ..args.engine.clone()
    };
    let vocab = model.config.vocab_size;
    let trace = workload.trace(vocab, 0);
    let tokens = trace.iter().map(|arrival| arrival.prompt.len() as u64 + u64::from(arrival.output));
    let demand = Demand::new(workload.requests, tokens.clone().sum()).longest(tokens.max().unwrap_or(0));
    let mut engine = model::engine(&engine_args, model, demand, Preemption::Recompute)?;
    warm_up(&mut engine, workload.trace(vocab, 1))?;
    let replay = Recorder::default().replay(&mut engine, workload, &trace)?;
    print(args, &replay)?;
    if let Some(dir) = &args.out {
        page::write(dir, &format!("trace-{}.json", replay.workload), &replay)?;
    }
    Ok(())
}

/// Runs another trace with the same lengths, so that shaders are compiled before the measurement. All requests arrive
/// at once and generate at most two tokens.
fn warm_up(engine: &mut Engine, trace: Vec<Arrival>) -> Result<()> {
    for arrival in trace {
        engine.submit(prompt(&arrival.prompt, arrival.output.min(2)))?;
    }
    while engine.has_work() {
        engine.step()?;
    }
    Ok(())
}

fn prompt(ids: &[u32], max_tokens: u32) -> Request {
    Request::new(ids.to_vec()).max_tokens(max_tokens).ignore_eos().without_text()
}

#[derive(Default)]
struct Recorder {
    /// Arrival and time of the last token of each unfinished request.
    there: HashMap<SeqId, (Duration, Option<Duration>)>,
    ttft_ms: Vec<f64>,
    inter_token_ms: Vec<f64>,
    latency_ms: Vec<f64>,
    output_tokens: usize,
    cached_tokens: u64,
    usage: Vec<Usage>,
}

impl Recorder {
    fn replay(mut self, engine: &mut Engine, workload: &Workload, trace: &[Arrival]) -> Result<Replay> {
        let preempted_before = engine.scheduler().num_preemptions();
        let start = Instant::now();
        let mut coming = trace.iter().peekable();
        while coming.peek().is_some() || engine.has_work() {
            while let Some(arrival) = coming.next_if(|next| next.at_s <= start.elapsed().as_secs_f64()) {
                let seq = engine.submit(prompt(&arrival.prompt, arrival.output))?;
                // Requests that arrive during a step have waited since their arrival.
                self.there.insert(seq, (Duration::from_secs_f64(arrival.at_s), None));
            }
            if !engine.has_work() {
                let next = coming.peek().map_or(0.0, |next| next.at_s);
                thread::sleep(Duration::from_secs_f64(next).saturating_sub(start.elapsed()));
                continue;
            }
            let events = engine.step()?;
            self.look(engine, start.elapsed());
            events.iter().for_each(|event| self.record(event, start.elapsed()));
        }
        let preemptions = engine.scheduler().num_preemptions() - preempted_before;
        Ok(self.finish(engine, workload, trace, start.elapsed(), preemptions))
    }

    fn look(&mut self, engine: &Engine, at: Duration) {
        let scheduler = engine.scheduler();
        self.usage.push(Usage {
            at_s: at.as_secs_f64(),
            blocks: scheduler.cache().pool().num_used(),
            running: scheduler.running().len(),
            waiting: scheduler.waiting().count(),
        });
    }

    fn record(&mut self, event: &Event, now: Duration) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        match event {
            Event::Token(token) => {
                let (arrived, last) =
                    self.there.get_mut(&token.seq).expect("a token of a request that arrived");
                match last.replace(now) {
                    None => self.ttft_ms.push(ms(now.saturating_sub(*arrived))),
                    Some(last) => self.inter_token_ms.push(ms(now - last)),
                }
                self.output_tokens += 1;
            }
            Event::Finished(done) => {
                let (arrived, _) = self.there.remove(&done.seq).expect("a request ends once");
                self.latency_ms.push(ms(now.saturating_sub(arrived)));
                self.cached_tokens += u64::from(done.usage.cached.total());
            }
            _ => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn finish(
        self,
        engine: &Engine,
        workload: &Workload,
        trace: &[Arrival],
        took: Duration,
        preemptions: u64,
    ) -> Replay {
        let gpu = engine.decoder().gpu();
        let prompt_tokens: usize = trace.iter().map(|arrival| arrival.prompt.len()).sum();
        let duration_s = took.as_secs_f64();
        Replay {
            workload: workload.name.clone(),
            adapter: gpu.info().name.clone(),
            driver: gpu.info().driver_info.clone(),
            level: format!("{:?}", gpu.level()),
            requests: self.latency_ms.len(),
            prompt_tokens,
            output_tokens: self.output_tokens,
            duration_s,
            requests_per_s: self.latency_ms.len() as f64 / duration_s,
            output_tok_s: self.output_tokens as f64 / duration_s,
            ttft_ms: Percentiles::of(self.ttft_ms),
            inter_token_ms: Percentiles::of(self.inter_token_ms),
            latency_ms: Percentiles::of(self.latency_ms),
            preemptions,
            hit_rate: self.cached_tokens as f64 / prompt_tokens as f64,
            pool_blocks: engine.scheduler().cache().pool().num_usable(),
            max_blocks: self.usage.iter().map(|usage| usage.blocks).max().unwrap_or(0),
            usage: self.usage,
        }
    }
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn print(args: &BenchArgs, replay: &Replay) -> Result<()> {
    if args.json {
        return Ok(report::json_line(&mut io::stdout().lock(), replay)?);
    }
    println!(
        "{}: {} requests, {} + {} tokens in {:.2} s: {:.2} requests/s, {:.1} output tok/s",
        replay.workload,
        replay.requests,
        replay.prompt_tokens,
        replay.output_tokens,
        replay.duration_s,
        replay.requests_per_s,
        replay.output_tok_s,
    );
    for (name, times) in [
        ("first token", replay.ttft_ms),
        ("inter-token", replay.inter_token_ms),
        ("whole", replay.latency_ms),
    ] {
        println!(
            "    {name:12} p50 {:9.1} ms, p90 {:9.1} ms, p99 {:9.1} ms",
            times.p50, times.p90, times.p99
        );
    }
    println!(
        "    {} preemptions, hit rate {:.3}, at most {} of {} blocks",
        replay.preemptions, replay.hit_rate, replay.max_blocks, replay.pool_blocks
    );
    Ok(())
}
