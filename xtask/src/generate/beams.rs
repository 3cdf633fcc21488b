//! `generate --beams`: the best hypotheses of each prompt, one prompt after the other.

use std::io;

use anyhow::{Context, Result};
use pagoda::usage::SparseUse;
use pagoda::{FinishReason, Request};

use super::{Run, timing};
use crate::interrupt::Interrupt;
use crate::report::{self, Generated};

impl<W: io::Write> Run<'_, W> {
    /// Searches and prints the prompts.
    pub(super) fn search(mut self, prompts: &[Request], interrupt: &Interrupt) -> Result<()> {
        for (index, prompt) in (0..).zip(prompts) {
            let found = self
                .engine
                .beam_search(prompt, || interrupt.requested())
                .with_context(|| format!("prompt {index}"))?;
            let prompt_tokens = u32::try_from(prompt.prompt.len())?;
            for (rank, beam) in (0..).zip(found.best) {
                let generated = Generated {
                    index,
                    sample: rank,
                    timing: timing(prompt_tokens - found.cached_tokens, &beam.tokens, found.clock),
                    prompt_tokens,
                    prompt_ids: prompt.prompt.clone(),
                    text: self.text_of(&beam.tokens)?,
                    finish_reason: match (beam.ended, found.aborted) {
                        (true, _) => FinishReason::EndOfSequence,
                        (false, true) => FinishReason::Cancelled,
                        (false, false) => FinishReason::Length,
                    },
                    output_ids: beam.tokens,
                    log_prob: Some(beam.log_prob),
                    log_probs: Vec::new(),
                    cached_tokens: found.cached_tokens,
                    preemptions: 0,
                    kv: self.engine.kv_use(),
                    tiers: self.engine.tier_use()?,
                    sparse: SparseUse::of(self.args.engine.policy().map(|sparse| &sparse.spec), None)
                        .on(self.engine.decoder()),
                };
                if self.args.json {
                    report::json_line(&mut io::stdout().lock(), &generated)?;
                } else {
                    self.printed.push(index, rank, &generated.text)?;
                    self.printed.finish(index, rank)?;
                }
                if !self.args.engine.quiet {
                    eprintln!("{}", report::timing_line(&generated));
                }
            }
            if found.aborted {
                break;
            }
        }
        Ok(interrupt.end()?)
    }

    fn text_of(&self, ids: &[u32]) -> Result<String> {
        let Some(tokenizer) = &self.model.tokenizer else {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            return Ok(if self.args.json { String::new() } else { ids.join(" ") });
        };
        Ok(tokenizer.decode(ids, true)?)
    }
}
