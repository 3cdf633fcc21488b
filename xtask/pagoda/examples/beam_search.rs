//! Beam search over an engine, as vLLM defines it: in each step every hypothesis is a request for one token, whose answer names
//! the likeliest ones in its place. Hypotheses share the blocks of what they have in common through the prefix cache.
//!
//! `cargo run --release -p pagoda-engine --example beam_search`
#![expect(clippy::print_stdout, reason = "the hypotheses")]

use std::collections::HashMap;
use std::sync::Arc;

use pagoda::{Demand, Engine, EngineOptions, Error, Event, Model, Request, Sampling, TokenLogProb};

#[cfg(not(test))]
fn main() -> Result<(), Error> {
    print(&Model::fetch_default(|_| {})?.into())
}

pub(crate) fn print(model: &Arc<Model>) -> Result<(), Error> {
    let (width, tokens) = (4, 12);
    let tokenizer = model.tokenizer()?;
    let prompt = tokenizer.encode("The capital of France is", true)?;
    let options = EngineOptions::new().demand(Demand::new(8, 2048).longest(256));
    let mut engine = Engine::open(Arc::clone(model), options)?;
    for beam in search(&mut engine, &prompt, width, tokens)? {
        println!("{:8.3}  {:?}", beam.log_prob, tokenizer.decode(&beam.tokens, true)?);
    }
    Ok(())
}

/// A hypothesis.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Beam {
    /// Generated tokens, including an end of sequence.
    pub(crate) tokens: Vec<u32>,
    /// Sum of the natural logarithms of their probabilities.
    pub(crate) log_prob: f64,
    /// Whether it ended with an end of sequence.
    pub(crate) ended: bool,
}

impl Beam {
    fn child(&self, next: &TokenLogProb, eos_ids: &[u32]) -> Self {
        Self {
            tokens: [&self.tokens[..], &[next.token]].concat(),
            log_prob: self.log_prob + f64::from(next.log_prob),
            ended: eos_ids.contains(&next.token),
        }
    }

    /// Log probability by length: that of prompt and output, without the end of sequence.
    fn score(&self, prompt: usize) -> f64 {
        let tokens = prompt + self.tokens.len() - usize::from(self.ended);
        self.log_prob / f64::from(u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}

/// The `width` best continuations of a prompt, at most 10, of up to `max_tokens` tokens: of all that ended, and of those that are
/// left.
pub(crate) fn search(
    engine: &mut Engine,
    prompt: &[u32],
    width: usize,
    max_tokens: usize,
) -> Result<Vec<Beam>, Error> {
    let eos_ids = engine.decoder().config().eos_ids.clone();
    let (mut live, mut ended) = (vec![Beam::default()], Vec::new());
    for _ in 0..max_tokens {
        let offers = offers(engine, prompt, &live, 2 * width)?;
        let children = live.iter().zip(&offers).flat_map(|(beam, offers)| {
            offers.iter().map(|next| beam.child(next, &eos_ids)).collect::<Vec<_>>()
        });
        let (done, mut open): (Vec<Beam>, Vec<Beam>) = children.partition(|beam| beam.ended);
        ended.extend(done);
        // All have one length, so the sum alone decides; the sort is stable.
        open.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
        open.truncate(width);
        live = open;
    }
    ended.extend(live);
    ended.sort_by(|a, b| b.score(prompt.len()).total_cmp(&a.score(prompt.len())));
    ended.truncate(width);
    Ok(ended)
}

/// The likeliest tokens behind each hypothesis, `[live][count]`, of one batch. One whose logits are not finite has none.
fn offers(
    engine: &mut Engine,
    prompt: &[u32],
    live: &[Beam],
    count: usize,
) -> Result<Vec<Vec<TokenLogProb>>, Error> {
    let sampling = Sampling::default().log_probs(u32::try_from(count).ok());
    let mut places = HashMap::new();
    for (place, beam) in live.iter().enumerate() {
        let ids = [prompt, &beam.tokens].concat();
        let request = Request::new(ids).max_tokens(1).ignore_eos().without_text();
        places.insert(engine.submit(request.sampling(sampling.clone()))?, place);
    }
    let mut offers = vec![Vec::new(); live.len()];
    while engine.has_work() {
        for event in engine.step()? {
            if let Event::Token(token) = event {
                offers[places[&token.seq]] = token.log_probs.map(|all| all.top).unwrap_or_default();
            }
        }
    }
    Ok(offers)
}
