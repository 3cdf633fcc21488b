//! Limits of each level on what its variants ask of an adapter.

use attn_kernels::reflect::Interface;
use attn_kernels::{Level, NamedVariant};

/// Capabilities of the level `Baseline`: conversions of packed f16 are plain WGSL, though naga counts them.
const PLAIN: [&str; 1] = ["SHADER_FLOAT16_IN_FLOAT32"];
const SUBGROUP: [&str; 2] = ["SHADER_FLOAT16_IN_FLOAT32", "SUBGROUP"];

/// Fails where a variant leaves WebGPU's default limits or its level; those of `Coop` ask for what their adapters have.
pub(crate) fn stays_inside(named: &NamedVariant, interface: &Interface) {
    let allowed: &[&str] = match named.level() {
        Level::Baseline => &PLAIN,
        Level::Subgroup => &SUBGROUP,
        Level::Coop => return,
    };
    let name = &named.name;
    let [x, y, z] = interface.workgroup_size;
    // With subgroups callers choose a larger workgroup where the device bears it: `Variant::lanes`.
    let chosen = named.variant.lanes().filter(|_| named.level() == Level::Subgroup);
    let most = chosen.map_or(256, |lanes| lanes.clamp(256, 512));
    assert!(x * y * z <= most, "{name}: {x} x {y} x {z} invocations");
    assert!(interface.workgroup_bytes <= 16_384, "{name}: {} bytes", interface.workgroup_bytes);
    assert!(interface.bindings.len() <= 8, "{name}: {} storage buffers", interface.bindings.len());
    let extra: Vec<_> = interface.capabilities.iter().filter(|c| !allowed.contains(&&c[..])).collect();
    assert!(extra.is_empty(), "{name} is {} and needs {extra:?}", named.level());
}
