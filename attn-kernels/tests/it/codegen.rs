//! Requirements of every variant on an adapter, and its translation for every driver: one table per kernel.

mod levels;
mod table;
mod tools;

use attn_kernels::{variants, variants_of};

#[test]
fn kernels() {
    for (kernel, table) in table::kernels(variants()) {
        insta::assert_snapshot!(kernel, table);
    }
}

#[test]
fn kernels_with_matrices_are_valid_on_every_device() {
    // Small heads: the texts of long ones are long, and no different.
    levels::translates_for_every_device(&variants_of(16));
}
