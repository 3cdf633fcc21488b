//! An engine on a thread of its own, used from several threads: three questions at once, one of which is given up.
//!
//! `cargo run --release -p pagoda-engine --example handle`
#![expect(clippy::print_stdout, reason = "the answers")]

use std::sync::Arc;
use std::thread;

use pagoda::{
    Demand, Engine, EngineHandle, EngineOptions, Error, HandleOptions, Message, Model, Request, Shutdown,
};

#[cfg(not(test))]
fn main() -> Result<(), Error> {
    serve(&Model::fetch_default(|_| {})?.into())
}

pub(crate) fn serve(model: &Arc<Model>) -> Result<(), Error> {
    let demand = Demand::new(4, 2048).longest(512);
    let engine = Engine::open(Arc::clone(model), EngineOptions::new().chunk(256).demand(demand))?;
    let handle = EngineHandle::spawn(engine, HandleOptions::default())?;

    let ask = |question: &str| {
        let prompt = model.chat_ids(&[Message::new("user", question)])?;
        handle.submit(Request::new(prompt).max_tokens(24))
    };
    let mut given_up = ask("Write a long story about a lighthouse.")?.blocking();
    let answers = [ask("Name a colour.")?, ask("What is two plus two?")?];

    let text = given_up.by_ref().take(4).map(|event| Ok(event?.text().to_owned()));
    println!("so far: {}", text.collect::<Result<String, Error>>()?);
    // The request ends before the next step; the others do not notice.
    drop(given_up);

    let readers = answers.map(|answer| {
        thread::spawn(move || {
            answer.blocking().map(|event| Ok(event?.text().to_owned())).collect::<Result<_, Error>>()
        })
    });
    for reader in readers {
        let text: String = reader.join().expect("a reader does not panic")?;
        println!("answer: {text}");
    }

    handle.shutdown(Shutdown::Drain).wait();
    let totals = handle.snapshot().totals;
    println!("{} steps, {} tokens, {} given up", totals.steps, totals.generated_tokens, totals.aborted);
    Ok(())
}
