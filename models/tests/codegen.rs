//! Every variant in the languages of the drivers. Snapshots hold the first variant of each kernel and level; the others
//! are translated, and checked where the tools are there.

#[path = "../../attn-kernels/tests/codegen/tools.rs"]
mod tools;

use attn_kernels::reflect::translate;
use models::kernel::variants;

#[test]
fn translations() {
    let mut seen = Vec::new();
    for named in variants() {
        let name = format!("{}.{}", named.name, named.level);
        let translation = translate(&named.variant).unwrap_or_else(|e| panic!("{name}: {e}"));
        let portable = translation.msl.is_some();
        // The tools of most systems do not know cooperative matrices yet.
        if portable {
            tools::check(&name, &named.variant.wgsl().unwrap(), &translation.spirv);
        }
        let kind = (named.variant.kernel.name, named.level);
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        if let (Some(msl), Some(hlsl)) = (translation.msl, translation.hlsl) {
            insta::assert_snapshot!(format!("{name}.metal"), msl);
            insta::assert_snapshot!(format!("{name}.hlsl"), hlsl);
        }
        insta::assert_snapshot!(format!("{name}.spv"), tools::header(&translation.spirv));
    }
}
