//! What every variant asks of an adapter, and that it translates for every driver: one table a kernel.

#[path = "codegen/levels.rs"]
mod levels;
#[path = "codegen/table.rs"]
mod table;
#[path = "codegen/tools.rs"]
mod tools;

use attn_kernels::variants;

#[test]
fn kernels() {
    for (kernel, table) in table::kernels(variants()) {
        insta::assert_snapshot!(kernel, table);
    }
}
