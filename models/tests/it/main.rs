//! Checkpoint readers, kernels and decoders against references, on the adapter that is there.

mod decoder;
mod examples;
mod loading;
mod paper;
mod tuning;

/// Whether the long form of every test is asked for.
fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}

/// The first `count` of `cases` by default, all of them in the long form: the others say the same of more families, types or
/// blocks, and compile kernels of their own.
fn usual<T>(count: usize, cases: &[T]) -> &[T] {
    if is_long() { cases } else { &cases[..count] }
}
