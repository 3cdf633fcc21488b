//! Long prompts beside streams: what they do to the others' time between tokens, on a device whose times are given.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagoda::{Demand, Engine, EngineOptions, Event, Stopwatch};

use crate::{engine, options, request};

/// Tokens of the long prompt, and of a step without a bound in time.
const LONG: usize = 480;
const CHUNK: u32 = 128;

/// Microseconds of a step on the device: what each takes, what prompts add at once, and each of their tokens.
#[derive(Clone, Copy)]
struct Costs {
    step: u32,
    prompts: u32,
    token: u32,
}

impl Costs {
    fn time(self, prefilled: u32) -> Duration {
        let prompts = if prefilled > 0 { self.prompts + self.token * prefilled } else { 0 };
        Duration::from_micros((self.step + prompts).into())
    }
}

/// Times of the steps of one engine.
struct Paced {
    engine: Engine,
    times: Arc<Mutex<Vec<Duration>>>,
}

impl Paced {
    fn new(costs: Costs, max_slowdown: Option<f64>) -> Self {
        let times = Arc::new(Mutex::new(Vec::new()));
        let of_step = {
            let times = Arc::clone(&times);
            move |prefilled, _| {
                let time = costs.time(prefilled);
                times.lock().unwrap().push(time);
                time
            }
        };
        let options: EngineOptions = options().chunk(CHUNK).demand(Demand::new(5, 4096).longest(2000));
        let options = options.max_slowdown(max_slowdown).stopwatch(Stopwatch::of_steps(of_step));
        let mut paced = Self { engine: engine(&options), times };
        // Kernels compile at first, in steps that count for nothing.
        paced.engine.submit(request(9, LONG, 2)).unwrap();
        while paced.engine.has_work() {
            paced.engine.step().unwrap();
        }
        paced
    }

    /// Times of steps that generate for four streams: alone, and while a long prompt is computed beside them.
    fn times(mut self) -> [Vec<Duration>; 2] {
        for seed in 0..4 {
            self.engine.submit(request(seed, 20, 400)).unwrap();
        }
        for _ in 0..30 {
            self.engine.step().unwrap();
        }
        let alone = std::mem::take(&mut *self.times.lock().unwrap()).split_off(10);
        let long = self.engine.submit(request(50, LONG, 1)).unwrap();
        loop {
            let events = self.engine.step().unwrap();
            let tokens = events.iter().filter(|event| matches!(event, Event::Token(_))).count();
            assert!(tokens >= 4, "a stream waits: {tokens} tokens");
            if events.iter().any(|event| matches!(event, Event::Finished(end) if end.seq == long)) {
                return [alone, std::mem::take(&mut *self.times.lock().unwrap())];
            }
        }
    }
}

/// The mean time beside the prompt over the mean time without, the largest over the same, and the steps that the prompt took.
fn slowdown(costs: Costs, max_slowdown: Option<f64>) -> (f64, f64, usize) {
    let [alone, beside] = Paced::new(costs, max_slowdown).times();
    let mean = |times: &[Duration]| {
        times.iter().sum::<Duration>().as_secs_f64() / f64::from(u32::try_from(times.len()).unwrap())
    };
    let longest = beside.iter().max().unwrap().as_secs_f64();
    (mean(&beside) / mean(&alone), longest / mean(&alone), beside.len())
}

/// Tokens take most of the time of a prompt, as in models of use.
#[test]
fn a_long_prompt_leaves_streams_their_pace() {
    let costs = Costs { step: 20_000, prompts: 2_000, token: 1_000 };
    let (unbounded, _, few) = slowdown(costs, None);
    let (bounded, longest, many) = slowdown(costs, Some(2.0));
    let seen =
        format!("without a bound {unbounded:.2} in {few} steps, with {bounded:.2}, {longest:.2} in {many}");
    assert!(unbounded > 5.0 && few <= LONG.div_ceil(CHUNK as usize) + 1, "{seen}");
    assert!(bounded < 2.1 && longest < 4.0, "{seen}");
    // Not a token less than the bound allows: 20 a step.
    assert!(many < 2 * LONG / 20, "{seen}");
}

/// Steps that cost about the same whatever they compute: prompts wait for every few steps, so that the mean keeps to the bound.
#[test]
fn steps_that_cost_little_but_their_commands_keep_the_pace_on_average() {
    let costs = Costs { step: 2_000, prompts: 8_000, token: 10 };
    let (unbounded, _, _) = slowdown(costs, None);
    let (bounded, longest, many) = slowdown(costs, Some(2.0));
    let seen = format!("without a bound {unbounded:.2}, with {bounded:.2}, {longest:.2} in {many} steps");
    assert!(unbounded > 4.0, "{seen}");
    // The first steps cannot know what prompts add at once.
    assert!(bounded < 2.5, "{seen}");
}
