//! The engine as a library, with tiny models and lavapipe or whatever adapter there is.

mod ask;
mod async_scheduling;
mod crossing;
mod embedding;
mod examples;
mod fetch;
mod fetched;
mod handle;
mod host_tier;
#[cfg(feature = "hub")]
mod hub;
mod kv_events;
mod non_finite;
mod pace;
mod poison;
mod poisoned;
mod replicas;
mod reservation;
mod sampling;
mod sequence;
mod short_memory;
mod simulation;
mod split;
mod surface;
mod text;
mod tier_groups;
#[cfg(feature = "tools")]
mod tools;

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread;

use pagoda::{Demand, Engine, EngineOptions, Event, Finished, KvDtype, Model, Request};

/// Whether the long form of every test is asked for.
fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}

/// A model that the tests of `models` have.
fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures", name].iter().collect()
}

/// Options for eight sequences of up to 512 tokens of the tiny Llama, in chunks of 32. Steps are sent early, as on GPUs.
fn options() -> EngineOptions {
    let demand = Demand::new(8, 4096).longest(512);
    EngineOptions::new().kv_dtype(KvDtype::F32).chunk(32).demand(demand).async_scheduling(true)
}

/// One of the tiny Llamas that tests share, throughout a test the same, and with it a device, on which kernels compile once.
/// There are as many as processors, but few: each compiles anew.
fn model() -> Arc<Model> {
    static MODELS: LazyLock<Vec<OnceLock<Arc<Model>>>> = LazyLock::new(|| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        (0..processors.min(4)).map(|_| OnceLock::new()).collect()
    });
    static TESTS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static TEST: usize = TESTS.fetch_add(1, Ordering::Relaxed));
    Arc::clone(MODELS[TEST.with(|test| test % MODELS.len())].get_or_init(|| Arc::new(open_model())))
}

/// The tiny Llama, whose vocabulary is 128 tokens, with devices that no other test uses.
fn open_model() -> Model {
    Model::open(fixture("tiny-llama")).unwrap()
}

/// An engine of a shared model.
fn engine(options: &EngineOptions) -> Engine {
    Engine::open(model(), options.clone()).unwrap()
}

/// `len` tokens of a sequence that `seed` names.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    let mut state = seed.wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 25
    };
    (0..len).map(next).collect()
}

/// A request for exactly `max_tokens` tokens.
fn request(seed: u32, len: usize, max_tokens: u32) -> Request {
    Request::new(prompt(seed, len)).max_tokens(max_tokens).ignore_eos()
}

/// Runs all requests to their end; returns the ends in the order of submission.
fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Finished> {
    for request in requests {
        engine.submit(request.clone()).unwrap();
    }
    let mut ends = Vec::new();
    while engine.has_work() {
        for event in engine.step().unwrap() {
            if let Event::Finished(end) = event {
                ends.push(*end);
            }
        }
    }
    ends.sort_by_key(|end| end.seq);
    ends
}
