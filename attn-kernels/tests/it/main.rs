//! Every kernel on the adapter that is there against its CPU reference, its layout, and its translations.

mod adapter;
mod codegen;
mod examples;
mod flushing;
mod layout;
mod random;
mod reference;
mod self_test;
mod trusted;

/// The first `count` of `cases` by default, all of them in the long form: the others say the same of more types, shapes or
/// blocks, and compile kernels of their own.
fn usual<T>(count: usize, cases: &[T]) -> &[T] {
    if reference::device::is_long() { cases } else { &cases[..count] }
}
