//! Every variant in the languages of the drivers. Snapshots hold the first variant of each kernel and level; the others
//! are translated, and checked where the tools are there.

#[path = "codegen/tools.rs"]
mod tools;

use attn_kernels::variants;

#[test]
fn translations() {
    for (name, text) in tools::translations(variants()) {
        insta::assert_snapshot!(name, text);
    }
}
