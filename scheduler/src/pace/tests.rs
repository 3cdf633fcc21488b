use super::*;

/// A device that takes `decode` microseconds for decodes and `sequence` more for each, `fixed` more with a prompt, and
/// `token` for each of its tokens.
#[derive(Clone, Copy)]
struct Device {
    decode: u64,
    sequence: u64,
    fixed: u64,
    token: u64,
}

const USUAL: Device = Device { decode: 20_000, sequence: 0, fixed: 0, token: 100 };

/// A model of 8 billion parameters in 4 bits on an H200.
const LARGE: Device = Device { decode: 3_200, sequence: 130, fixed: 2_500, token: 78 };

const FOUR: Concurrency = Concurrency { decoding: 4, prefilling: 1 };

impl Device {
    fn time(self, tokens: u32, decoding: usize) -> u64 {
        let beside = if tokens > 0 { self.fixed } else { 0 };
        let decodes = if decoding > 0 { self.decode + self.sequence * decoding as u64 } else { self.decode };
        decodes + beside + self.token * u64::from(tokens)
    }

    /// Tokens of steps of one load.
    fn run(self, pace: &mut Pace, load: Concurrency, steps: u32) -> Vec<u32> {
        let step = |_| {
            let tokens = pace.prefill_tokens(load);
            pace.observe(tokens, load.decoding, Duration::from_micros(self.time(tokens, load.decoding)));
            tokens
        };
        (0..steps).map(step).collect()
    }

    /// Mean time of these steps divided by the time of a step without prompts.
    fn slowdown(self, tokens: &[u32], decoding: usize) -> f64 {
        let sum: u64 = tokens.iter().map(|tokens| self.time(*tokens, decoding)).sum();
        sum as f64 / (self.time(0, decoding) * tokens.len() as u64) as f64
    }

    /// Serves `prompts` prompts of 512 tokens that come at once, each with an answer of 256.
    fn burst(self, mut pace: Option<Pace>, prompts: u32) -> Served {
        let (mut now, mut to_compute) = (0_u64, prompts * 512);
        let mut served = Served::default();
        // Tokens that each answer still lacks.
        let mut answers: Vec<u32> = Vec::new();
        while to_compute > 0 || !answers.is_empty() {
            let load = Concurrency { decoding: answers.len(), prefilling: to_compute.div_ceil(512) as usize };
            let limit = pace.as_mut().map_or(2048, |pace| pace.prefill_tokens(load));
            let tokens = to_compute.min(limit);
            let time = self.time(tokens, load.decoding);
            if let Some(pace) = &mut pace {
                pace.observe(tokens, load.decoding, Duration::from_micros(time));
            }
            now += time;
            served.between.extend(answers.iter().map(|_| time));
            answers.iter_mut().for_each(|left| *left -= 1);
            answers.retain(|left| *left > 0);
            to_compute -= tokens;
            let waiting = to_compute.div_ceil(512) as usize;
            for _ in waiting..load.prefilling {
                served.first.push(now);
                answers.push(255);
            }
        }
        served.end = now;
        served.between.sort_unstable();
        served
    }
}

/// Times of a burst in microseconds: of the last token, of first tokens, and between tokens.
#[derive(Default)]
struct Served {
    end: u64,
    first: Vec<u64>,
    between: Vec<u64>,
}

impl Served {
    fn first_p50(&self) -> u64 {
        self.first[self.first.len() / 2]
    }

    fn between_p50(&self) -> u64 {
        self.between[self.between.len() / 2]
    }
}

#[test]
fn prompts_get_the_time_that_decodes_take() {
    let mut pace = Pace::new(2.0, 2048);
    assert_eq!(pace.prefill_tokens(Concurrency { decoding: 0, prefilling: 1 }), 2048);
    // The first step measures decodes alone, the second one so few prompt tokens that a twentieth of it
    // is assumed to be theirs; then no step has twice the tokens of the largest before.
    let tokens = USUAL.run(&mut pace, FOUR, 40);
    assert_eq!(tokens[..5], [0, 4, 60, 92, 124], "{tokens:?}");
    assert!(tokens[5..].iter().all(|tokens| (180..=220).contains(tokens)), "{tokens:?}");
    let mut hurried = Pace::new(4.0, 512);
    assert_eq!(USUAL.run(&mut hurried, FOUR, 14)[10..], [508; 4]);
}

#[test]
fn decodes_are_measured_again() {
    let mut pace = Pace::new(2.0, 2048);
    let tokens = USUAL.run(&mut pace, FOUR, 200);
    // Two steps each time: what the first one takes is still that of a step after prompts.
    let alone: Vec<usize> = (0..200).filter(|step| tokens[*step] == 0).collect();
    assert_eq!(alone, [0, 65, 66, 131, 132, 197, 198]);
}

#[test]
fn other_numbers_of_sequences_are_measured_too_while_prompts_get_on() {
    let mut pace = Pace::new(2.0, 2048);
    let mut without = 0;
    for step in 0..400 {
        // A number that is new every few steps, up to 128, and then known.
        let load = Concurrency { decoding: 1 + step / 2 % 128, prefilling: 1 };
        without += LARGE.run(&mut pace, load, 1).iter().filter(|tokens| **tokens == 0).count();
    }
    assert!(without < 200, "{without} of 400 steps without prompts");
    let tokens = LARGE.run(&mut pace, Concurrency { decoding: 64, prefilling: 1 }, 50);
    let slowdown = LARGE.slowdown(&tokens, 64);
    // Whole tiles leave some of the time to the decodes.
    assert!((1.5..2.1).contains(&slowdown), "{slowdown}: {tokens:?}");
}

#[test]
fn longer_contexts_get_smaller_chunks() {
    let mut pace = Pace::new(2.0, 2048);
    USUAL.run(&mut pace, FOUR, 10);
    let longer = Device { token: 500, ..USUAL };
    let tokens = &longer.run(&mut pace, FOUR, 60)[40..];
    assert!(tokens.iter().all(|tokens| *tokens < 100), "{tokens:?}");
    let slowdown = longer.slowdown(tokens, 4);
    assert!((1.5..2.1).contains(&slowdown), "{slowdown}: {tokens:?}");
}

#[test]
fn a_step_that_is_long_for_another_reason_counts_for_nothing() {
    let mut pace = Pace::new(2.0, 2048);
    USUAL.run(&mut pace, FOUR, 20);
    let tokens = pace.prefill_tokens(FOUR);
    pace.observe(tokens, 4, Duration::from_secs(1));
    assert!((180..=220).contains(&USUAL.run(&mut pace, FOUR, 1)[0]));
}

#[test]
fn what_a_step_costs_at_once_is_spread_over_others() {
    // Steps beside a prompt take at least four times as long, whatever they compute.
    let small = Device { decode: 20_000, sequence: 0, fixed: 60_000, token: 200 };
    let mut pace = Pace::new(2.0, 2048);
    let tokens = small.run(&mut pace, FOUR, 400);
    let (begin, rest) = tokens.split_at(50);
    assert!(small.slowdown(rest, 4) < 2.1 && small.slowdown(begin, 4) < 2.5, "{tokens:?}");
    // A step with about 300 tokens costs twice what is lost anyway; then the others have five of their own.
    let computed: u32 = rest.iter().sum();
    assert!(computed > 350 * 30, "{computed} tokens in {} steps: {tokens:?}", rest.len());
    assert!(rest.iter().all(|tokens| *tokens == 0 || small.time(*tokens, 4) < 10 * 20_000), "{tokens:?}");
}

#[test]
fn short_steps_become_worthwhile_ones_among_others() {
    let mut pace = Pace::new(2.0, 2048);
    let one = Concurrency { decoding: 1, prefilling: 1 };
    let tokens = LARGE.run(&mut pace, one, 600);
    let rest = &tokens[50..];
    let slowdown = LARGE.slowdown(rest, 1);
    assert!((1.6..2.1).contains(&slowdown), "{slowdown}: {rest:?}");
    // In twice the time of its decode a step has room for 10 tokens, in 12 ms for 80, in whole tiles for 63, after which two
    // others follow.
    let computed: u32 = rest.iter().sum();
    assert!(computed > 18 * 550, "{computed}");
    let longest = rest.iter().map(|tokens| LARGE.time(*tokens, 1)).max().unwrap();
    assert!(longest < 14_000, "{longest} us");
}

#[test]
fn a_burst_is_served_in_little_more_time_than_without_a_pace() {
    for prompts in [8, 32, 64, 200] {
        let [paced, free] = [Some(Pace::new(2.0, 2048)), None].map(|pace| LARGE.burst(pace, prompts));
        let end = paced.end as f64 / free.end as f64;
        let first = paced.first_p50() as f64 / free.first_p50() as f64;
        assert!(
            end < 1.3 && first < 1.2,
            "{prompts}: {end:.2} times the time, {first:.2} to the first token"
        );
        // The answers go on meanwhile.
        let between = paced.between_p50() as f64 / LARGE.time(0, prompts as usize) as f64;
        assert!(between <= 2.0, "{prompts}: {between:.2} times the time between tokens");
    }
}

#[test]
fn a_deep_prompt_costs_more_and_more_and_keeps_to_the_factor() {
    // As an H200 with 16 sequences and a prompt of 100,000 tokens, whose keys each step reads; a step that is not like the one
    // before takes longer, and times scatter by a tenth.
    let (decoding, length) = (16, 100_000);
    let load = Concurrency { decoding, prefilling: 1 };
    let mut pace = Pace::new(2.0, 2048);
    let (mut done, mut now, mut steps, mut longest) = (0, 0_u64, 0_u64, 0);
    let mut noise = 1_u64;
    let mut mixed = true;
    while done < length {
        let tokens = pace.prefill_tokens(load).min(length - done);
        let deep = Device {
            fixed: LARGE.fixed + u64::from(done) / 30,
            token: LARGE.token + u64::from(done) / 600,
            ..LARGE
        };
        let encodes = if mixed { 1_500 } else { 0 };
        mixed = tokens > 0;
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Tiles of 64 rows cost as a whole.
        let whole = (tokens + 16).next_multiple_of(64).min(tokens * 64);
        let time = (deep.time(whole, decoding) + encodes) * (950 + (noise >> 33) % 100) / 1000;
        pace.observe(tokens, decoding, Duration::from_micros(time));
        (done, now, steps, longest) = (done + tokens, now + time, steps + 1, longest.max(time));
    }
    let decode = LARGE.time(0, decoding);
    let slowdown = now as f64 / (decode * steps) as f64;
    assert!((1.8..2.05).contains(&slowdown), "{slowdown}");
    // At the end a tile takes 21 ms beside its sequences; guesses cost a second one.
    assert!(longest < 50_000, "a step of {longest} us, decodes take {decode}");
}

#[test]
fn a_slow_device_still_gets_on() {
    let mut pace = Pace::new(2.0, 2048);
    let one = Concurrency { decoding: 1, prefilling: 1 };
    pace.observe(0, 1, Duration::from_millis(10));
    pace.observe(64, 0, Duration::from_secs(60));
    assert_eq!(pace.prefill_tokens(one), 4);
    let slow = Device { decode: 10_000, sequence: 0, fixed: 0, token: 100_000 };
    let tokens = slow.run(&mut pace, one, 1000);
    assert!(slow.slowdown(&tokens, 1) < 2.3 && tokens.iter().sum::<u32>() > 60, "{tokens:?}");
    let mut small = Pace::new(2.0, 2);
    small.observe(0, 1, Duration::from_millis(10));
    assert_eq!(small.prefill_tokens(one), 2);
}
