//! Checkpoint readers, kernels and decoders against references, on the adapter that is there.

mod decoder;
mod examples;
mod loading;
mod paper;
mod tuning;

use proptest::test_runner::Config;

/// Whether the long form of every test is asked for.
fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}

/// The first `count` of `cases` by default, all of them in the long form: the others say the same of more families, types or
/// blocks, and compile kernels of their own.
fn usual<T>(count: usize, cases: &[T]) -> &[T] {
    if is_long() { cases } else { &cases[..count] }
}

/// Every how many of some cases run by default: all of them do in the long form.
fn every(count: usize) -> usize {
    if is_long() { 1 } else { count }
}

/// `count` cases of a property by default, `PROPTEST_CASES` if it is set. The long form of all tests asks for thousands, which
/// take hours of a software driver: there it is 32 times `count` at most. Failing cases need no file: their inputs are printed.
fn cases(count: u32) -> Config {
    let default = Config { failure_persistence: None, ..Config::default() };
    let most = if is_long() { 32 * count } else { u32::MAX };
    let asked = std::env::var_os("PROPTEST_CASES").map(|_| default.cases.min(most));
    Config { cases: asked.unwrap_or(count), ..default }
}
