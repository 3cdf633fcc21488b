//! `pagoda run`: prompts in, text out, served as one continuous batch.

mod prompts;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagoda::{Clock, Demand, Engine, Event, Finished, LogProbs, Model, Request, SeqId, Token};

use crate::cli::{Defaults, GenerateArgs};
use crate::interrupt::Interrupt;
use crate::model;
use crate::open_model::open_model;
use crate::progress::PrefillBar;
use crate::report::{self, Generated, TextStream, Timing};

pub(crate) use prompts::{read_messages, read_text};

/// Runs the command, with parameters of the sampler that no flag gives from `defaults`.
///
/// # Errors
/// Errors of the model, the device or a prompt.
pub fn run(args: &GenerateArgs, defaults: Defaults) -> Result<()> {
    let model = open_model(&args.engine)?;
    let prompts = prompts::read(args, &model, defaults)?;
    let count = u32::try_from(prompts.len()).context("too many prompts")?;
    let context = u64::from(model.config.context_length);
    let block = u64::from(args.engine.block_size);
    let longest =
        |p: &Request| (p.prompt.len() as u64 + u64::from(p.max_tokens)).min(context).next_multiple_of(block);
    let demand = Demand::new(
        count.saturating_mul(args.n),
        prompts.iter().map(|p| longest(p) * u64::from(p.samples)).sum(),
    )
    .longest(prompts.iter().map(longest).max().unwrap_or(0));
    let mut run = Run {
        args,
        model: &model,
        engine: model::engine(&args.engine, &model, demand, args.preempt)?,
        open: HashMap::new(),
        printed: TextStream::new(io::stdout().lock(), count, args.n),
        failed: 0,
        error: None,
    };
    // From the first submission on there is work to end: a tier may read for a prompt before the first step.
    let interrupt = Interrupt::listen()?;
    interrupt.bound_compilation_of(run.engine.decoder().gpu());
    for (index, prompt) in (0..).zip(prompts) {
        let ids = prompt.prompt.clone();
        let first = run.engine.submit(prompt).with_context(|| format!("prompt {index}"))?;
        for sample in 0..args.n {
            let prompt_ids = ids.clone();
            let open = Open { index, sample, prompt_ids, text: String::new(), log_probs: Vec::new() };
            run.open.insert(SeqId::new(first.get() + u64::from(sample)), open);
        }
    }
    run.serve(&interrupt)
}

struct Run<'a, W> {
    args: &'a GenerateArgs,
    model: &'a Model,
    engine: Engine,
    open: HashMap<SeqId, Open>,
    printed: TextStream<W>,
    /// Number of samples that ended by an error; the next field is the first of these errors.
    failed: u32,
    error: Option<String>,
}

/// A sample that is not finished.
struct Open {
    index: u32,
    sample: u32,
    prompt_ids: Vec<u32>,
    text: String,
    log_probs: Vec<LogProbs>,
}

impl<W: io::Write> Run<'_, W> {
    fn serve(mut self, interrupt: &Interrupt) -> Result<()> {
        let mut bar = PrefillBar::new(&self.engine, self.args.engine.quiet, self.args.engine.verbose);
        while self.engine.has_work() {
            let mut events = self.engine.step()?;
            if interrupt.requested() {
                let mut open: Vec<SeqId> = self.open.keys().copied().collect();
                open.sort_unstable();
                events.extend(open.into_iter().flat_map(|seq| self.engine.cancel(seq)));
            }
            for event in bar.pass(&self.engine, events) {
                match event {
                    Event::Token(token) => self.token(&token)?,
                    Event::Finished(done) => self.finished(*done)?,
                    _ => {}
                }
            }
        }
        match self.error {
            None => Ok(interrupt.end()?),
            Some(error) => bail!("{} samples ended early: {error}", self.failed),
        }
    }

    fn token(&mut self, token: &Token) -> Result<()> {
        let open = self.open.get_mut(&token.seq).expect("a sequence with a token has not ended");
        open.text.push_str(&token.text);
        open.log_probs.extend(token.log_probs.clone());
        if self.args.json {
            return Ok(());
        }
        // Without a tokenizer there is nothing to print but ids.
        match &self.model.tokenizer {
            Some(_) => self.printed.push(open.index, open.sample, &token.text)?,
            None => self.printed.push(open.index, open.sample, &format!("{} ", token.id))?,
        }
        Ok(())
    }

    fn finished(&mut self, done: Finished) -> Result<()> {
        let open = self.open.remove(&done.seq).expect("a sequence ends once");
        if let Some(error) = done.reason.error() {
            self.failed += 1;
            self.error.get_or_insert(error);
        }
        let usage = done.usage;
        let generated = Generated {
            index: open.index,
            sample: open.sample,
            timing: timing(usage.prompt_tokens - usage.cached.total(), &done.output, usage.clock),
            prompt_tokens: usage.prompt_tokens,
            prompt_ids: open.prompt_ids,
            output_ids: done.output,
            log_probs: open.log_probs.iter().map(report::TokenLogProbs::from).collect(),
            text: open.text + &done.text,
            finish_reason: done.reason,
            cached_tokens: usage.cached.total(),
            preemptions: usage.preemptions,
            kv: self.engine.kv_use(),
            tiers: self.engine.tier_use()?,
            sparse: usage.sparse,
        };
        if self.args.json {
            report::json_line(&mut io::stdout().lock(), &generated)?;
        } else {
            self.printed.push(open.index, open.sample, &done.text)?;
            self.printed.finish(open.index, open.sample)?;
        }
        if !self.args.engine.quiet {
            eprintln!("{}", report::timing_line(&generated));
        }
        Ok(())
    }
}

/// Speed of a request with `computed` computed prompt tokens.
pub(crate) fn timing(computed: u32, output: &[u32], clock: Clock) -> Timing {
    let decode = clock.decode().filter(|_| output.len() > 1);
    Timing {
        ttft_ms: clock.to_first_token().map(|time| time.as_secs_f64() * 1e3),
        prefill_tok_s: clock.prefill().map(|time| rate(u64::from(computed), time)),
        decode_tok_s: decode.map(|time| rate(output.len() as u64 - 1, time)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
fn rate(tokens: u64, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}
