//! Every variant in the languages of the drivers. Snapshots hold the first variant of each kernel and level; the others
//! are translated, and checked where the tools are there.

#[path = "../../attn-kernels/tests/codegen/tools.rs"]
mod tools;

use models::kernel::variants;

#[test]
fn translations() {
    for (name, text) in tools::translations(variants()) {
        insta::assert_snapshot!(name, text);
    }
}
