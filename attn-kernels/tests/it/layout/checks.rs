//! Bindings and parameters of kernels on the host against their WGSL. Shared by the crates with kernels.

use attn_kernels::reflect::interface;
use attn_kernels::{Access, Kernel, NamedVariant, ParamsLayout};
use std::collections::BTreeSet;
use std::path::Path;

/// Fails where the uniform struct of a variant has other fields than the kernel declares.
pub(crate) fn structs(variants: &[NamedVariant]) {
    for named in variants {
        let params = interface(&named.variant).unwrap().params;
        let kernel = named.variant.kernel;
        let members: Vec<(&str, usize)> =
            params.members.iter().map(|(name, at)| (&name[..], *at as usize)).collect();
        let declared: Vec<(&str, usize)> =
            kernel.params.fields.iter().map(|field| (field.name, field.offset)).collect();
        assert_eq!(members, declared, "{}", named.name);
        let bytes = (params.bytes as usize).next_multiple_of(ParamsLayout::ALIGN);
        assert_eq!(bytes, kernel.params.bytes, "{}", named.name);
    }
}

/// Fails where the bindings of a variant are not those of its WGSL by name and access, from 1 on.
pub(crate) fn bindings(variants: &[NamedVariant]) {
    for named in variants {
        let bindings = interface(&named.variant).unwrap().bindings;
        let found: Vec<(u32, &str, Access)> =
            bindings.iter().map(|binding| (binding.binding, &binding.name[..], binding.access)).collect();
        let declared = (1..).zip(&named.variant.bindings);
        let declared: Vec<(u32, &str, Access)> =
            declared.map(|(number, binding)| (number, binding.name, binding.access)).collect();
        assert_eq!(found, declared, "{}", named.name);
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
        let reference =
            kernel.wgsl.split_once("CPU reference: src/").and_then(|(_, rest)| rest.split_once(".rs"));
        let file = reference.map(|(file, _)| wgsl.with_file_name("src").join(file).with_extension("rs"));
        assert!(file.as_ref().is_some_and(|file| file.is_file()), "{}: reference {file:?}", kernel.name);
    }
}
