//! The workflows of the forge run what people run, with the compiler that the workspace asks for.

use std::fs;

use xtask::tree;

fn workflow(name: &str) -> String {
    fs::read_to_string(tree::root().join(".github/workflows").join(name)).unwrap()
}

#[test]
fn they_use_the_least_compiler() {
    let manifest: toml::Table = fs::read_to_string(tree::root().join("Cargo.toml")).unwrap().parse().unwrap();
    let least = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    for name in ["ci.yml", "fuzz.yml", "release.yml"] {
        let line = format!("RUST: \"{least}\"");
        assert!(workflow(name).lines().any(|text| text.trim() == line), "{name} lacks {line}");
    }
}

#[test]
fn they_run_what_a_contributor_runs() {
    let ci = workflow("ci.yml");
    let elsewhere = ["windows-2022, macos-14", "cargo build --workspace --all-targets", "doctor --self-test"];
    let here = [".ci/run", "cargo fmt --all --check", "check advisories bans licenses sources"];
    for command in here.into_iter().chain(elsewhere) {
        assert!(ci.contains(command), "ci.yml lacks {command}");
    }
    assert!(workflow("fuzz.yml").contains("fuzz/run"), "fuzz.yml does not fuzz");
    let features = xtask::test::FEATURES.replace("xtask/", "");
    let build = format!("cargo build --release --locked --package pagoda-cli --features {features}");
    assert!(workflow("release.yml").contains(&build), "release.yml lacks {build}");
}
