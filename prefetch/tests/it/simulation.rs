//! A machine whose parts all fail, as a function of a seed: memory, a disk and a service as tiers, the board of the prefetch
//! engine over them, and requests that come, are cancelled, and lose their process.
//!
//! Whatever fails, every answer is the block that was asked for or an error; every task ends; nothing is kept beyond its limit;
//! and once nothing fails any more, every tier serves again. A failing seed repeats itself:
//! `PREFETCH_SIMULATION_SEED=7 cargo test -p pagoda-prefetch --test it simulation`. `PREFETCH_SIMULATION_SEEDS` sets how many
//! seeds are run, 200 by default.

mod counts;
mod machine;
mod service;

use counts::Counts;
use machine::Machine;

/// Operations of a seed.
const OPERATIONS: u32 = 400;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a whole number"))
}

#[test]
fn whatever_fails_answers_are_right_or_errors() {
    let seeds = match number("PREFETCH_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PREFETCH_SIMULATION_SEEDS").unwrap_or(200),
    };
    let mut all = Counts::default();
    for seed in seeds.clone() {
        let run = || {
            let mut machine = Machine::new(seed);
            (0..OPERATIONS).for_each(|_| machine.step());
            machine.recover();
            machine.counts
        };
        match std::panic::catch_unwind(run) {
            Ok(counts) => all += counts,
            Err(panic) => {
                eprintln!("PREFETCH_SIMULATION_SEED={seed} repeats this");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{} seeds: {all:?}", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < 100 || all.everything_happened(), "{all:?}");
}

#[test]
fn a_seed_repeats_itself() {
    let run = || {
        let mut machine = Machine::new(11);
        (0..OPERATIONS).for_each(|_| machine.step());
        machine.counts
    };
    assert_eq!(run(), run());
}
