//! Long prompts beside streams: what they do to the others' time between tokens.

use std::time::{Duration, Instant};

use models::RandomSpec;
use pagoda::{Demand, Engine, EngineOptions, Event, KvDtype, Model, Request};

use crate::fixture::MODEL;

/// Tokens of the long prompt, and of a step without a bound in time.
const LONG: usize = 1200;
const CHUNK: u32 = 512;

/// Two layers of SmolLM2, with random weights: most of the time goes into the products, as in models of use.
const SHAPE: &str = "smollm2-135m,layers=2";

fn engine(model: &Model, max_slowdown: Option<f64>) -> Engine {
    let demand = Demand::new(5, 8192).longest(4000);
    let mut options = EngineOptions::new().kv_dtype(KvDtype::F32).chunk(CHUNK).demand(demand);
    options.max_slowdown = max_slowdown;
    Engine::open(model, &options).unwrap()
}

fn request(first: u32, len: usize, max_tokens: u32) -> Request {
    let prompt = (0..).map(|at: u32| (at * 31 + first) % 120).take(len).collect();
    Request::new(prompt).max_tokens(max_tokens).ignore_eos()
}

/// Times of steps that generate for four streams: alone, and while a long prompt is computed beside them.
fn times(engine: &mut Engine) -> [Vec<Duration>; 2] {
    for first in 0..4 {
        engine.submit(&request(first, 20, 900)).unwrap();
    }
    let mut step = || {
        let begun = Instant::now();
        (engine.step().unwrap(), begun.elapsed())
    };
    (0..10).for_each(|_| drop(step()));
    let alone = (0..40).map(|_| step().1).collect();
    let long = engine.submit(&request(50, LONG, 1)).unwrap();
    let mut beside = Vec::new();
    loop {
        let begun = Instant::now();
        let events = engine.step().unwrap();
        beside.push(begun.elapsed());
        assert!(
            events.iter().filter(|event| matches!(event, Event::Token(_))).count() >= 4,
            "a stream waits"
        );
        if events.iter().any(|event| matches!(event, Event::Finished(end) if end.seq == long)) {
            return [alone, beside];
        }
    }
}

/// The time below which a share of the times are.
fn quantile(times: &[Duration], share: f64) -> f64 {
    let mut times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    times.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "few"
    )]
    let at = (share * times.len() as f64) as usize;
    times[at.min(times.len() - 1)]
}

/// The mean of the times.
fn mean(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() / f64::from(u32::try_from(times.len()).unwrap())
}

/// The bound of 2 is a target that the measured times scatter about, so the test asks for less; and since other tests
/// run beside this one, whose load can fall on the steps alone and hide what the prompt does, one of ten attempts
/// has to show it.
#[test]
fn a_long_prompt_leaves_streams_their_pace() {
    let model = Model::random(RandomSpec::parse(SHAPE).unwrap()).unwrap();
    let slowdown = |max_slowdown| {
        let [alone, beside] = times(&mut engine(&model, max_slowdown));
        let [p50, p90] = [0.5, 0.9].map(|share| quantile(&beside, share) / quantile(&alone, share));
        eprintln!("slowdown limit {max_slowdown:?}: {} steps, p50 {p50:.2}, p90 {p90:.2}", beside.len());
        (p50, beside.len())
    };
    let attempt = || {
        let (unbounded, few) = slowdown(None);
        let (bounded, many) = slowdown(Some(2.0));
        assert!(few <= LONG.div_ceil(CHUNK as usize) + 1, "{few} steps without a bound");
        many > 4 * few && bounded < unbounded / 2.0
    };
    assert!((0..10).any(|_| attempt()), "the bound had no effect in ten attempts");
}

/// A model of no size, whose steps cost about the same whatever they compute: prompts wait for every few steps, so that the
/// mean keeps to the bound.
#[test]
fn steps_that_cost_little_but_their_commands_keep_the_pace_on_average() {
    let slowdown = |max_slowdown| {
        let [alone, beside] = times(&mut engine(&MODEL, max_slowdown));
        let slowdown = mean(&beside) / mean(&alone);
        let p50 = quantile(&beside, 0.5) / quantile(&alone, 0.5);
        eprintln!(
            "slowdown limit {max_slowdown:?}: {} steps, mean {slowdown:.2}, p50 {p50:.2}",
            beside.len()
        );
        slowdown
    };
    slowdown(None);
    // One of ten attempts, because other work on the machine falls on either side.
    assert!((0..10).any(|_| slowdown(Some(2.0)) < 3.0), "more than 3 times as long in ten attempts");
}
