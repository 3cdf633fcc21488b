//! Requirements of every variant on an adapter, and its translation for every driver: one table per kernel.

#[path = "../../../../attn-kernels/tests/it/codegen/levels.rs"]
mod levels;
#[path = "../../../../attn-kernels/tests/it/codegen/table.rs"]
mod table;
#[path = "../../../../attn-kernels/tests/it/codegen/tools.rs"]
mod tools;

use dense_kernels::kernel::variants;

#[test]
fn kernels() {
    for (kernel, table) in table::kernels(variants()) {
        insta::assert_snapshot!(kernel, table);
    }
}

#[test]
fn kernels_with_matrices_are_valid_on_every_device() {
    levels::translates_for_every_device(&variants());
}
