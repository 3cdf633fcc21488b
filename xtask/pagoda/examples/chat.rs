//! The engine in one loop: submit a request, step, print what comes.
//!
//! `cargo run --release -p pagoda-engine --example chat`
#![expect(clippy::print_stdout, reason = "the answer")]

use std::io::Write;
use std::sync::Arc;

use pagoda::{Demand, Engine, EngineOptions, Error, Event, Message, Model, Request, Sampling};

#[cfg(not(test))]
fn main() -> Result<(), Error> {
    chat(&Model::fetch_default(|_| {})?.into())
}

pub(crate) fn chat(model: &Arc<Model>) -> Result<(), Error> {
    let mut engine = Engine::open(Arc::clone(model), EngineOptions::new().demand(Demand::one(512)))?;
    let prompt = model.chat_ids(&[Message::new("user", "Why is the sky blue?")])?;
    let sampling = Sampling::default().temperature(0.7).top_p(0.9).seed(1);
    engine.submit(Request::new(prompt).max_tokens(48).sampling(sampling))?;
    while engine.has_work() {
        for event in engine.step()? {
            print!("{}", event.text());
            let _ = std::io::stdout().flush();
            if let Event::Finished(end) = event {
                let usage = end.usage;
                let first = usage.clock.to_first_token().unwrap_or_default();
                let (prompt, generated) = (usage.prompt_tokens, usage.generated_tokens);
                println!("\n[{}: {prompt} + {generated} tokens, the first after {first:.1?}]", end.reason);
            }
        }
    }
    Ok(())
}
