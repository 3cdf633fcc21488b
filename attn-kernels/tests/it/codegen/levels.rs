//! Limits of each level on what its variants ask of an adapter.

use attn_kernels::profile::Matrices;
use attn_kernels::reflect::{Bytes, Interface, translate_trusted};
use attn_kernels::{Access, Level, NamedVariant, TextLength};

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
    let (uniform, storage): (Vec<_>, Vec<_>) =
        interface.bindings.iter().partition(|binding| binding.access == Access::Window);
    assert!(storage.len() <= 8, "{name}: {} storage buffers", storage.len());
    // One more holds the parameters.
    assert!(uniform.len() < 12, "{name}: {} uniform buffers", uniform.len() + 1);
    let extra: Vec<_> = interface.capabilities.iter().filter(|c| !allowed.contains(&&c[..])).collect();
    assert!(extra.is_empty(), "{name} is {} and needs {extra:?}", named.level());
}

/// Fails where a variant's text is not valid for the matrices of a device: it differs with them.
pub(crate) fn translates_for_every_device(variants: &[NamedVariant]) {
    for (size, lanes) in [(16, 32), (16, 64), (8, 8), (8, 16), (8, 32), (8, 64)] {
        let matrices = Matrices::new(size, lanes).expect("kernels are written for it");
        let served =
            |named: &&NamedVariant| named.level() == Level::Coop && named.variant.subgroups.contains(&lanes);
        for NamedVariant { name, variant } in variants.iter().filter(served) {
            let translated = translate_trusted(variant, TextLength::Full, matrices, Bytes::Typed);
            let translated = translated.unwrap_or_else(|error| panic!("{name}, {matrices:?}: {error}"));
            assert!(translated.workgroup_lanes.is_multiple_of(lanes), "{name}, {matrices:?}");
        }
    }
}
