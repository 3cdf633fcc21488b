//! What every variant asks of an adapter, and that it translates for every driver: one table a kernel.

#[path = "../../attn-kernels/tests/codegen/levels.rs"]
mod levels;
#[path = "../../attn-kernels/tests/codegen/table.rs"]
mod table;
#[path = "../../attn-kernels/tests/codegen/tools.rs"]
mod tools;

use models::kernel::variants;

#[test]
fn kernels() {
    for (kernel, table) in table::kernels(variants()) {
        insta::assert_snapshot!(kernel, table);
    }
}
