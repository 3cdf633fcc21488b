//! Every dense kernel on the adapter that is there against its CPU reference, its layout, and its translations.

#[path = "../../../../attn-kernels/tests/it/adapter.rs"]
mod adapter;
mod codegen;
mod coop;
mod kernels;
mod layout;
mod random;
mod self_test;

/// Every how many of some cases run by default: all of them do in the long form.
fn every(count: usize) -> usize {
    if kernels::device::is_long() { 1 } else { count }
}

/// The first `count` of `cases` by default, all of them in the long form: the others say the same of more types or rows, and
/// compile kernels of their own.
fn usual<T>(count: usize, cases: &[T]) -> &[T] {
    if kernels::device::is_long() { cases } else { &cases[..count] }
}
