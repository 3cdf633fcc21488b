//! Requirements of every variant on an adapter, and its translation for every driver: one table per kernel.

mod levels;
mod table;
mod tools;

use attn_kernels::variants;

#[test]
fn kernels() {
    for (kernel, table) in table::kernels(variants()) {
        insta::assert_snapshot!(kernel, table);
    }
}
