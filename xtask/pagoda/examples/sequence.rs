//! One sequence through a model: how likely a text is, token by token, and how it goes on.
//!
//! `cargo run --release -p pagoda-engine --example sequence`
#![expect(clippy::print_stdout, reason = "the scores")]

use pagoda::{Demand, EngineOptions, Error, Model, Sampler, Sampling, Sequence, most_likely};

#[cfg(not(test))]
fn main() -> Result<(), Error> {
    score(&Model::fetch_default(|_| {})?)
}

pub(crate) fn score(model: &Model) -> Result<(), Error> {
    let tokenizer = model.tokenizer()?;
    let ids = tokenizer.encode("The capital of France is", true)?;

    let options = EngineOptions::new().chunk(256).demand(Demand::one(512));
    let mut decoder = model.load(&options, options.chunk)?;
    let mut sequence = Sequence::new(&mut decoder, options.chunk)?;
    // Nothing comes before the first token, so it has no probability.
    for (id, log_prob) in ids[1..].iter().zip(sequence.log_probs(&ids)?) {
        println!("{log_prob:8.3}  {:?}", tokenizer.decode(&[*id], false)?);
    }

    let mut sequence = Sequence::new(&mut decoder, options.chunk)?;
    sequence.extend(&ids);
    let (likely, log_probs) = most_likely(&sequence.logits()?, 3);
    for (id, log_prob) in likely.iter().zip(log_probs) {
        println!("{log_prob:8.3}  {:?} may follow", tokenizer.decode(&[*id], false)?);
    }
    sequence.push(likely[0]);
    let mut sampler = Sampler::new(Sampling::default(), &ids);
    for _ in 0..8 {
        sequence.next(&mut sampler)?;
    }
    println!("{}", tokenizer.decode(sequence.tokens(), true)?);
    Ok(())
}
