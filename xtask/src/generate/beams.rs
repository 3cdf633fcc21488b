//! `generate --beams`: the best hypotheses of each prompt, one prompt after the other.

use std::io;

use anyhow::{Context, Result};

use super::{Run, timing};
use crate::engine::Prompt;
use crate::interrupt::Interrupt;
use crate::report::{self, FinishReason, Generated, Sparse};
use crate::text::Text;

impl<W: io::Write> Run<'_, W> {
    /// Searches and prints the prompts.
    pub(super) fn search(mut self, prompts: &[Prompt], interrupt: &Interrupt) -> Result<()> {
        for (index, prompt) in (0..).zip(prompts) {
            let found = self
                .engine
                .beam_search(prompt, || interrupt.requested())
                .with_context(|| format!("prompt {index}"))?;
            let prompt_tokens = u32::try_from(prompt.ids.len())?;
            for (rank, beam) in (0..).zip(found.best) {
                let generated = Generated {
                    index,
                    sample: rank,
                    timing: timing(prompt_tokens - found.cached_tokens, &beam.tokens, found.clock),
                    prompt_tokens,
                    prompt_ids: prompt.ids.clone(),
                    text: self.text_of(&beam.tokens)?,
                    finish_reason: match (beam.ended, found.aborted) {
                        (true, _) => FinishReason::Stop,
                        (false, true) => FinishReason::Abort,
                        (false, false) => FinishReason::Length,
                    },
                    output_ids: beam.tokens,
                    log_prob: Some(beam.log_prob),
                    cached_tokens: found.cached_tokens,
                    preemptions: 0,
                    kv: self.engine.kv_use(),
                    tiers: self.engine.tiers()?,
                    sparse: Sparse::of(self.args.engine.sparse.as_ref(), None),
                };
                if self.args.json {
                    report::json_line(&mut io::stdout().lock(), &generated)?;
                } else {
                    self.printed.push(index, rank, &generated.text)?;
                    self.printed.finish(index, rank)?;
                }
                eprintln!("{}", report::timing_line(&generated));
            }
            if found.aborted {
                break;
            }
        }
        Ok(interrupt.end()?)
    }

    fn text_of(&self, ids: &[u32]) -> Result<String> {
        let Some(tokenizer) = self.tokenizer else { return Ok(String::new()) };
        let mut text = Text::new(tokenizer, &[]);
        for id in ids {
            text.push(*id)?;
        }
        Ok(text.finish()?.0)
    }
}
