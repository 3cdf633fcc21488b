//! What each variant asks of an adapter, as a snapshot: a kernel that suddenly needs more shows as one line.

use attn_kernels::Level;
use attn_kernels::reflect::interface;
use models::kernel::variants;

/// What the level `Baseline` may ask for: conversions of packed f16 are plain WGSL, though naga counts them.
const PLAIN: [&str; 1] = ["SHADER_FLOAT16_IN_FLOAT32"];
const SUBGROUP: [&str; 2] = ["SHADER_FLOAT16_IN_FLOAT32", "SUBGROUP"];

#[test]
fn interfaces() {
    for named in variants() {
        let interface = interface(&named.variant).unwrap_or_else(|e| panic!("{}: {e}", named.name));
        insta::assert_ron_snapshot!(format!("{}.{}", named.name, named.level), interface);
    }
}

#[test]
fn variants_stay_inside_the_default_limits_and_their_level() {
    for named in variants() {
        let interface = interface(&named.variant).unwrap();
        let name = &named.name;
        if named.level == Level::Coop {
            continue; // It asks for what its adapters have.
        }
        let [x, y, z] = interface.workgroup_size;
        assert!(x * y * z <= 256, "{name}: {x} x {y} x {z} invocations");
        assert!(interface.workgroup_bytes <= 16_384, "{name}: {} bytes", interface.workgroup_bytes);
        assert!(interface.bindings.len() <= 8, "{name}: {} storage buffers", interface.bindings.len());
        let allowed: &[&str] = match named.level {
            Level::Baseline => &PLAIN,
            Level::Subgroup => &SUBGROUP,
            Level::Coop => unreachable!("passed over above"),
        };
        let extra: Vec<_> = interface.capabilities.iter().filter(|c| !allowed.contains(&&c[..])).collect();
        assert!(extra.is_empty(), "{name} is {} and needs {extra:?}", named.level);
    }
}
