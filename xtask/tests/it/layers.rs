//! The layers of the workspace: which crate may build on which, and what stays out of the pure ones.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;
use xtask::tree;

/// The crates from the bottom up, each with the workspace crates that it may build on.
const LAYERS: [(&str, &[&str]); 12] = [
    ("kvblock", &[]),
    ("sparse-select", &["kvblock"]),
    ("attn-kernels", &["kvblock", "sparse-select"]),
    ("prefetch", &["kvblock"]),
    ("scheduler", &["kvblock", "sparse-select"]),
    ("checkpoint", &["kvblock"]),
    ("dense-kernels", &["sparse-select", "attn-kernels", "checkpoint"]),
    ("models", &["kvblock", "sparse-select", "attn-kernels", "prefetch", "checkpoint", "dense-kernels"]),
    ("pagoda", &["kvblock", "sparse-select", "attn-kernels", "prefetch", "scheduler", "models"]),
    ("serve", &["pagoda"]),
    ("cli", &["kvblock", "sparse-select", "attn-kernels", "prefetch", "models", "pagoda", "serve"]),
    ("xtask", &["kvblock", "sparse-select", "attn-kernels", "prefetch", "models", "pagoda", "cli"]),
];

/// Crates that decide and compute nothing but data, by the `cargo tree` flags they are pure under, with what then
/// stays out of their normal tree.
const PURE: [(&str, &[&str], &[&str]); 11] = [
    ("kvblock", &[], &["wgpu", "naga", "tokio"]),
    ("sparse-select", &[], &["wgpu", "naga", "tokio"]),
    ("scheduler", &[], &["wgpu", "naga", "tokio"]),
    ("prefetch", &[], &["wgpu", "naga", "tokio"]),
    ("attn-kernels", &["--no-default-features"], &["wgpu", "tokio"]),
    ("checkpoint", &[], &["wgpu", "naga", "attn-kernels", "tokio"]),
    ("checkpoint", &["--no-default-features"], &["tokenizers", "minijinja", "jiff"]),
    ("dense-kernels", &["--no-default-features"], &["wgpu", "naga", "pagoda-prefetch", "tokio"]),
    ("dense-kernels", &[], &["tokenizers", "minijinja", "jiff"]),
    // What fetches models is in the engine.
    ("models", &[], &["tokio", "zip", "dirs"]),
    // The engine brings wgpu, but no async runtime and nothing of a program.
    ("pagoda", &[], &["tokio", "anyhow", "clap", "indicatif", "ctrlc"]),
];

/// Crates without a line of unsafe code.
const FORBID_UNSAFE: [&str; 6] =
    ["kvblock", "sparse-select", "scheduler", "prefetch", "xtask/pagoda", "xtask/serve"];

/// Dependencies of programs, which libraries do without.
const XTASK_ONLY: [&str; 3] = ["anyhow", "clap", "indicatif"];

/// Packages whose name in the registry is not that of their library and folder: other people's crates have it.
const PUBLISHED_AS: [(&str, &str); 8] = [
    ("prefetch", "pagoda-prefetch"),
    ("scheduler", "pagoda-scheduler"),
    ("checkpoint", "pagoda-checkpoint"),
    ("dense-kernels", "pagoda-dense-kernels"),
    ("models", "pagoda-models"),
    ("pagoda", "pagoda-engine"),
    ("serve", "pagoda-serve"),
    ("cli", "pagoda-cli"),
];

/// The package of a crate of [`LAYERS`].
fn package(name: &str) -> &str {
    PUBLISHED_AS.iter().find(|(short, _)| *short == name).map_or(name, |(_, package)| package)
}

/// The crate of a package, as [`LAYERS`] names it.
fn short(package: &str) -> String {
    let found = PUBLISHED_AS.iter().find(|(_, published)| *published == package);
    found.map_or(package, |(short, _)| short).to_string()
}

/// A dependency that a package declares.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    from: String,
    to: String,
    dev: bool,
}

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(args).current_dir(tree::root()).output().unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Names of the workspace's packages, each with the folder of its manifest, and all edges that they declare.
fn declared() -> (BTreeSet<(String, String)>, BTreeSet<Edge>) {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let mut packages = BTreeSet::new();
    let mut edges = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = short(package["name"].as_str().unwrap());
        let manifest = text(&package["manifest_path"]).replace('\\', "/");
        packages.insert((name.clone(), manifest.rsplit('/').nth(1).unwrap().to_string()));
        for dependency in package["dependencies"].as_array().unwrap() {
            let dev = dependency["kind"] == "dev";
            edges.insert(Edge { from: name.clone(), to: short(dependency["name"].as_str().unwrap()), dev });
        }
    }
    (packages, edges)
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|(layer, _)| *layer == name)
}

/// Says what is wrong with an edge, if anything. Tests may build on every crate further down.
fn fault(edge: &Edge) -> Option<String> {
    let Edge { from, to, dev } = edge;
    let from_layer = layer(from)?;
    let allowed = match layer(to) {
        None => ["cli", "xtask"].contains(&from.as_str()) || *dev || !XTASK_ONLY.contains(&to.as_str()),
        // A crate may turn on features of its own for its tests.
        Some(to_layer) if *dev => to_layer <= from_layer,
        Some(_) => LAYERS[from_layer].1.contains(&to.as_str()),
    };
    (!allowed).then(|| format!("{from} must not build on {to}"))
}

#[test]
fn every_edge_goes_down_and_is_on_the_table() {
    let (_, edges) = declared();
    assert!(edges.iter().any(|edge| edge.from == "xtask"), "cargo metadata lists no dependencies: {edges:?}");
    let faults: Vec<_> = edges.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_wrong_edge_is_caught() {
    let edge = |from: &str, to: &str, dev| Edge { from: from.into(), to: to.into(), dev };
    assert_eq!(fault(&edge("kvblock", "scheduler", false)).unwrap(), "kvblock must not build on scheduler");
    assert_eq!(fault(&edge("kvblock", "prefetch", true)).unwrap(), "kvblock must not build on prefetch");
    assert_eq!(
        fault(&edge("prefetch", "attn-kernels", false)).unwrap(),
        "prefetch must not build on attn-kernels"
    );
    assert_eq!(fault(&edge("models", "anyhow", false)).unwrap(), "models must not build on anyhow");
    assert_eq!(fault(&edge("models", "kvblock", false)), None);
    assert_eq!(fault(&edge("prefetch", "attn-kernels", true)), None);
    assert_eq!(fault(&edge("xtask", "anyhow", false)), None);
}

#[test]
fn the_workspace_is_these_crates_each_in_a_folder_of_its_name() {
    let expected: BTreeSet<_> = LAYERS.iter().map(|(name, _)| (name.to_string(), name.to_string())).collect();
    assert_eq!(declared().0, expected);
}

#[test]
fn pure_crates_have_no_gpu_and_no_runtime_in_their_tree() {
    for (name, flags, absent) in PURE {
        let args =
            [&["tree", "--package", package(name), "--edges", "normal", "--prefix", "none"], flags].concat();
        let tree = cargo(&args);
        let packages: BTreeSet<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(packages.contains(package(name)), "cargo tree of {name} lists {packages:?}");
        let found: Vec<_> = absent.iter().filter(|package| packages.contains(**package)).collect();
        assert!(found.is_empty(), "{name} {} builds on {found:?}", flags.join(" "));
    }
}

/// The normal tree of a crate: a package a line, with its features in brackets.
fn features(name: &str) -> String {
    let format = ["--edges", "normal", "--prefix", "none", "--format", "{p} [{f}]"];
    cargo(&[&["tree", "--package", package(name)], &format[..]].concat())
}

/// The program has what its users need: no writers of the languages of other graphics APIs, and nothing that draws charts or
/// installs packages.
#[test]
fn the_program_has_no_tools_of_the_sources() {
    let tree = features("cli");
    let lines: BTreeSet<_> = tree.lines().filter_map(|line| line.split_once(" [")).collect();
    let of = |name: &str| {
        lines.iter().filter(|(package, _)| package.split(' ').next() == Some(name)).collect::<Vec<_>>()
    };
    assert_eq!(of("pagoda-cli").len(), 1, "{tree}");
    for name in ["xtask", "plotters", "rust-apt"] {
        assert!(of(name).is_empty(), "{name} is below pagoda-cli");
    }
    for (package, features) in of("attn-kernels") {
        assert!(!features.contains("reflect"), "{package}: {features}");
    }
    for (package, features) in of("naga") {
        for writer in ["wgsl-out", "msl-out", "glsl-out"] {
            // wgpu itself brings HLSL and SPIR-V.
            assert!(!features.contains(writer), "{package} has {writer}: {features}");
        }
    }
}

#[test]
fn the_engine_has_no_code_of_tests() {
    let tree = features("pagoda");
    for name in ["attn-kernels", "dense-kernels", "models"] {
        let line = tree.lines().find(|line| line.starts_with(&format!("{} ", package(name)))).expect(name);
        let (_, features) = line.rsplit_once('[').expect("the format has brackets");
        assert!(!features.contains("self-test") && !features.contains("reflect"), "{line}");
    }
}

/// `attn_kernels::gpu` runs what a variant says; choices between kernels are in `launch`, above both.
#[test]
fn the_runtime_knows_no_kernel() {
    let src = tree::root().join("attn-kernels/src");
    let files = tree::files(&src.join("gpu")).into_iter().map(|file| src.join("gpu").join(file));
    let files: Vec<_> = files.chain([src.join("gpu.rs")]).collect();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let named: Vec<_> = code.filter(|line| line.contains("kernel::")).collect();
        assert!(named.is_empty(), "{} names kernels: {named:?}", file.display());
    }
}

#[test]
fn crates_that_forbid_unsafe_code_say_so() {
    for name in FORBID_UNSAFE {
        let root = fs::read_to_string(tree::root().join(name).join("src/lib.rs")).unwrap();
        assert!(root.contains("#![forbid(unsafe_code)]"), "{name}/src/lib.rs lacks #![forbid(unsafe_code)]");
    }
}
