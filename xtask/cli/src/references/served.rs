//! Runs the prompts of a reference: on the decoder for logits, and through the engine for tokens.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use models::batch::Phase;
use pagoda::{Demand, EngineOptions, Event, Model, Request, Sequence, StepWork};

use super::{Compared, ReferencePrompt};
use crate::cli::{Defaults, EngineArgs, GenerateArgs};
use crate::model;

/// Results of a model for one prompt.
#[derive(Debug, Default)]
pub(super) struct Prefilled {
    /// Logits, `[rows, vocab]`.
    logits: Vec<f32>,
    /// Experts and tokens that the routers and indexers of all layers chose for each row.
    pub(super) choices: Vec<Vec<(usize, Vec<u32>)>>,
}

impl Prefilled {
    /// As many of the last rows of logits as `want` has, or all if there are fewer.
    pub(super) fn last(&self, want: &[f32]) -> &[f32] {
        &self.logits[self.logits.len().saturating_sub(want.len())..]
    }
}

/// Runs prompts one by one, each in chunks.
pub(super) fn prefill(
    model: &Model,
    args: &EngineArgs,
    prompts: &[ReferencePrompt],
) -> Result<Vec<Prefilled>> {
    let longest = prompts.iter().map(|prompt| prompt.ids.len() as u64).max().unwrap_or(0);
    let mut decoder = model::decoder(args, model, longest)?;
    decoder.first_mut().trace_choices(true)?;
    let one = |prompt: &ReferencePrompt| {
        let mut sequence = Sequence::new(&mut decoder, args.chunk)?;
        sequence.extend(&prompt.ids);
        let mut prefilled = Prefilled::default();
        for tokens in prompt.ids.chunks(sequence.chunk()) {
            let ask = StepWork { logits: tokens.len(), ..StepWork::nothing(Phase::Prefill) };
            let output = sequence.step(tokens.len(), ask)?;
            prefilled.logits.extend(output.logits);
            let of_row = |row: usize| output.choices.iter().map(|c| (c.layer, c.rows[row].clone())).collect();
            prefilled.choices.extend((0..tokens.len()).map(of_row));
        }
        Ok(prefilled)
    };
    prompts.iter().map(one).collect()
}

/// Generates greedy tokens for all prompts in one batch, the last prompt twice, and counts the wrong ones; if
/// `tight`, in a pool that holds little more than the longest sequence.
pub(super) fn generate(
    model: &Arc<Model>,
    args: &GenerateArgs,
    tight: bool,
    prompts: &[ReferencePrompt],
    compared: &mut Compared,
) -> Result<()> {
    let batch: Vec<&ReferencePrompt> = prompts.iter().chain(prompts.last()).collect();
    let count = u32::try_from(batch.len())?;
    let longest = |prompt: &&ReferencePrompt| (prompt.ids.len() + prompt.greedy.len()) as u64;
    let demand = Demand::new(count, batch.iter().map(longest).sum())
        .longest(batch.iter().map(longest).max().unwrap_or(0));
    let mut engine_args = args.engine.clone();
    if tight {
        let alone = model.max_used_blocks(
            &EngineOptions::from(&args.engine),
            args.engine.chunk + count,
            demand.longest,
        )?;
        engine_args.kv_blocks = Some(u32::try_from(alone + alone / 4)?);
    }
    let mut engine = model::engine(&engine_args, model, demand, args.preempt)?;
    let mut wanted_of = HashMap::new();
    for prompt in batch {
        let request = Request::new(prompt.ids.clone()).max_tokens(u32::try_from(prompt.greedy.len())?);
        let request =
            request.sampling(args.sampling.sampling(model, Defaults::Greedy)?).ignore_eos().without_text();
        let seq = engine.submit(request)?;
        wanted_of.insert(seq, &prompt.greedy[..prompt.before_near_tie]);
    }
    while engine.has_work() {
        for event in engine.step()? {
            let Event::Finished(finished) = event else { continue };
            let want = wanted_of[&finished.seq];
            // After a wrong token, all later ones count as wrong.
            let equal = finished.output.iter().zip(want).take_while(|(got, want)| got == want).count();
            compared.tokens += want.len();
            compared.wrong_tokens += want.len() - equal;
            compared.preemptions += finished.usage.preemptions;
            compared.cached_tokens += finished.usage.cached.total();
        }
    }
    Ok(())
}
