//! What the host knows of kernels against their WGSL. Shared by the crates with kernels.

use attn_kernels::reflect::{Binding, interface};
use attn_kernels::{Access, Kernel, NamedVariant};
use std::collections::BTreeSet;
use std::path::Path;

/// `(name of the struct, bytes, (field, offset) of every field)`.
pub(crate) type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! layout {
    ($params:ty: $($field:ident)*) => {
        (
            stringify!($params).rsplit(' ').next().unwrap(),
            size_of::<$params>(),
            vec![$((stringify!($field), std::mem::offset_of!($params, $field))),*],
        )
    };
}
pub(crate) use layout;

/// Fails where the uniform struct of a variant is not one of `layouts`.
pub(crate) fn structs(layouts: &[Layout], variants: &[NamedVariant]) {
    for named in variants {
        let params = interface(&named.variant).unwrap().params;
        let (_, bytes, fields) = layouts
            .iter()
            .find(|(name, ..)| *name == params.name)
            .unwrap_or_else(|| panic!("{}: no host struct {}", named.name, params.name));
        let members: Vec<(&str, usize)> =
            params.members.iter().map(|(n, at)| (&n[..], *at as usize)).collect();
        assert_eq!((params.bytes as usize, &members), (*bytes, fields), "{}", named.name);
        assert_eq!(*bytes, named.variant.kernel.params_bytes, "{}", named.name);
        assert_eq!(bytes % 16, 0, "{}: uniform blocks are multiples of 16 bytes", named.name);
    }
}

/// Fails where the bindings of a variant are not those of its WGSL, from 1 on.
pub(crate) fn bindings(variants: &[NamedVariant]) {
    for named in variants {
        let bindings = interface(&named.variant).unwrap().bindings;
        let accesses: Vec<Access> = bindings.iter().map(Binding::access).collect();
        assert_eq!(accesses, named.variant.bindings, "{}", named.name);
        let indices: Vec<u32> = bindings.iter().map(|b| b.binding).collect();
        let expected: Vec<u32> = (1..=u32::try_from(accesses.len()).unwrap()).collect();
        assert_eq!(indices, expected, "{}", named.name);
    }
}

/// Fails where a file of `wgsl` is not in the catalog, has no variant or names no reference.
pub(crate) fn files(wgsl: &Path, catalog: &[&Kernel], variants: &[NamedVariant]) {
    let files = std::fs::read_dir(wgsl).unwrap().map(|entry| entry.unwrap().path());
    let stems: BTreeSet<String> = files
        .filter(|path| path.extension().is_some_and(|e| e == "wgsl"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let names = |kernels: Vec<&str>| kernels.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(stems, names(catalog.iter().map(|k| k.name).collect()));
    assert_eq!(stems, names(variants.iter().map(|v| v.variant.kernel.name).collect()));
    for kernel in catalog {
        // The kernels of other levels share the reference of the kernel that they stand in for.
        let reference =
            kernel.name.trim_end_matches("_coop").trim_end_matches("_subgroup").trim_end_matches("_tile");
        assert!(kernel.wgsl.contains(&format!("CPU reference: src/cpu/{reference}.rs")), "{}", kernel.name);
    }
}
