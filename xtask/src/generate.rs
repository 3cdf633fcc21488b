//! `cargo xtask generate`: prompts in, text out, served as one continuous batch.

mod beams;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvblock::SeqId;
use models::{Message, Tokenizer};
use scheduler::{FinishReason as Reason, Finished};

use crate::cli::GenerateArgs;
use crate::engine::{Clock, Engine, Event, Prompt};
use crate::ids_file;
use crate::interrupt::Interrupt;
use crate::model::{Model, Wanted};
use crate::report::{self, FinishReason, Generated, Sparse, TextStream, Timing};
use crate::text::Text;

/// Runs the command.
///
/// # Errors
/// Errors of the model, the device or a prompt.
pub fn run(args: &GenerateArgs) -> Result<()> {
    let model = Model::open(&args.engine)?;
    let prompts = prompts(args, &model)?;
    let count = u32::try_from(prompts.len()).context("too many prompts")?;
    let context = u64::from(model.config.context_length);
    let block = u64::from(args.engine.block_size);
    let longest =
        |p: &Prompt| (p.ids.len() as u64 + u64::from(p.max_tokens)).min(context).next_multiple_of(block);
    let wanted = Wanted {
        tokens: prompts.iter().map(|p| longest(p) * u64::from(p.samples)).sum(),
        longest: prompts.iter().map(longest).max().unwrap_or(0),
    };
    let samples = args.beams.unwrap_or(args.n);
    let together = if args.beams.is_some() { samples } else { count.saturating_mul(samples) };
    let engine = Engine::open(&args.engine, &model, together, wanted, args.preempt)?;
    let mut run = Run {
        args,
        tokenizer: model.tokenizer.as_ref(),
        engine,
        open: HashMap::new(),
        printed: TextStream::new(io::stdout().lock(), count, samples),
        failed: 0,
    };
    if args.beams.is_some() {
        return run.search(&prompts, &Interrupt::listen()?);
    }
    for (index, prompt) in (0..).zip(&prompts) {
        let first = run.engine.submit(prompt).with_context(|| format!("prompt {index}"))?;
        for sample in 0..args.n {
            let text = run.tokenizer.map(|t| Text::new(t, &args.stop));
            let open = Open { index, sample, prompt_ids: prompt.ids.clone(), output_ids: Vec::new(), text };
            run.open.insert(SeqId::new(first.get() + u64::from(sample)), open);
        }
    }
    run.serve(&Interrupt::listen()?)
}

/// The prompts as token ids.
fn prompts(args: &GenerateArgs, model: &Model) -> Result<Vec<Prompt>> {
    let lists = match &args.ids_file {
        Some(path) => ids_file::read(path)?,
        None => texts(args)?.iter().map(|text| tokens(text, args.raw, model)).collect::<Result<_>>()?,
    };
    let prompt = |ids| Prompt {
        ids,
        max_tokens: args.max_tokens,
        samples: args.beams.unwrap_or(args.n),
        sampling: args.sampling.clone(),
        salt: args.salt.clone(),
        ignore_eos: false,
    };
    Ok(lists.into_iter().map(prompt).collect())
}

fn texts(args: &GenerateArgs) -> Result<Vec<String>> {
    match &args.prompt_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Ok(vec![text.with_context(|| format!("{}: cannot be read", path.display()))?])
        }
        None => Ok(args.prompt.clone()),
    }
}

fn tokens(text: &str, raw: bool, model: &Model) -> Result<Vec<u32>> {
    let tokenizer =
        model.tokenizer.as_ref().context("the model has no tokenizer: give token ids with --ids-file")?;
    match &model.chat {
        Some(chat) if !raw => {
            let text = chat.render(&[Message::new("user", text)], true)?;
            Ok(tokenizer.encode(&text, false)?)
        }
        _ => Ok(tokenizer.encode(text, true)?),
    }
}

struct Run<'a, W> {
    args: &'a GenerateArgs,
    tokenizer: Option<&'a Tokenizer>,
    engine: Engine,
    open: HashMap<SeqId, Open<'a>>,
    printed: TextStream<W>,
    failed: u32,
}

/// A sample that is not finished.
struct Open<'a> {
    index: u32,
    sample: u32,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    text: Option<Text<'a>>,
}

impl<W: io::Write> Run<'_, W> {
    fn serve(mut self, interrupt: &Interrupt) -> Result<()> {
        while self.engine.has_work() {
            let mut events = self.engine.step()?;
            if interrupt.requested() {
                let mut open: Vec<SeqId> = self.open.keys().copied().collect();
                open.sort_unstable();
                events.extend(open.into_iter().flat_map(|seq| self.engine.finish(seq, Reason::Aborted)));
            }
            for event in events {
                match event {
                    Event::Token(seq, id) => self.token(seq, id)?,
                    Event::Finished(done, clock) => self.finished(&done, clock)?,
                }
            }
        }
        match self.failed {
            0 => Ok(interrupt.end()?),
            failed => bail!("{failed} samples ended early: their KV could not be read"),
        }
    }

    fn token(&mut self, seq: SeqId, id: u32) -> Result<()> {
        // A stop text may already have ended the sequence in this step.
        let Some(open) = self.open.get_mut(&seq) else { return Ok(()) };
        open.output_ids.push(id);
        let Some(text) = &mut open.text else { return Ok(()) };
        let (piece, stopped) = text.push(id)?;
        if !self.args.json {
            self.printed.push(open.index, open.sample, &piece)?;
        }
        if stopped {
            for event in self.engine.finish(seq, Reason::Stopped) {
                if let Event::Finished(done, clock) = event {
                    self.finished(&done, clock)?;
                }
            }
        }
        Ok(())
    }

    fn finished(&mut self, done: &Finished, clock: Clock) -> Result<()> {
        let Some(open) = self.open.remove(&done.seq) else { return Ok(()) };
        self.failed += u32::from(done.reason == Reason::Failed);
        let (text, rest) = open.text.map(Text::finish).transpose()?.unwrap_or_default();
        let generated = Generated {
            index: open.index,
            sample: open.sample,
            timing: timing(done.prompt_len - done.cached_tokens, &open.output_ids, clock),
            prompt_tokens: done.prompt_len,
            prompt_ids: open.prompt_ids,
            output_ids: open.output_ids,
            log_prob: None,
            text,
            finish_reason: match done.reason {
                Reason::Stopped => FinishReason::Stop,
                Reason::LengthCapped => FinishReason::Length,
                Reason::Aborted => FinishReason::Abort,
                Reason::Failed => FinishReason::Error,
            },
            cached_tokens: done.cached_tokens,
            preemptions: done.preemptions,
            kv: self.engine.kv_use(),
            tiers: self.engine.tiers()?,
            sparse: Sparse::of(
                self.args.engine.sparse.as_ref(),
                self.engine.take_attended(done.seq).as_ref(),
            ),
        };
        if self.args.json {
            report::json_line(&mut io::stdout().lock(), &generated)?;
        } else {
            self.printed.push(open.index, open.sample, &rest)?;
            self.printed.finish(open.index, open.sample)?;
        }
        eprintln!("{}", report::timing_line(&generated));
        Ok(())
    }
}

/// Speed of a request of whose prompt `computed` tokens were computed.
fn timing(computed: u32, output: &[u32], clock: Clock) -> Timing {
    let first = clock.first.unwrap_or_else(Instant::now);
    let prefill = first - clock.started.unwrap_or(first);
    let decode = clock.last.map(|last| last - first).filter(|_| output.len() > 1);
    Timing {
        ttft_ms: (first - clock.submitted).as_secs_f64() * 1e3,
        prefill_tok_s: rate(u64::from(computed), prefill),
        decode_tok_s: decode.map(|time| rate(output.len() as u64 - 1, time)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
fn rate(tokens: u64, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}
