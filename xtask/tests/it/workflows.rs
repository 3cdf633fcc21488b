//! The workflows of the forge run what people run, with the compiler that the workspace asks for, and `.ci/long` the long tests.

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

/// The programs of tests and filters of their names that `.ci/long` runs in the long form.
fn long_runs(script: &str) -> Vec<(&str, Vec<&str>)> {
    let runs = script.lines().filter_map(|line| line.strip_prefix("PAGODA_LONG_TESTS=1 run "));
    let runs = runs.filter_map(|run| run.split_once(" -- "));
    runs.map(|(program, filters)| (program, filters.split(' ').collect())).collect()
}

/// A filter is a module, or begins the name of a test.
#[test]
fn every_long_form_runs() {
    let script = fs::read_to_string(tree::root().join(".ci/long")).unwrap();
    let runs = long_runs(&script);
    let (mut count, mut left_out) = (0, Vec::new());
    for path in tree::files(tree::root()) {
        let shown = path.display().to_string().replace('\\', "/");
        let below = shown.strip_suffix(".rs").and_then(|shown| shown.split_once("/tests/"));
        let Some((program, module)) = below.and_then(|(_, below)| below.split_once('/')) else { continue };
        let text = fs::read_to_string(tree::root().join(&path)).unwrap();
        let has_one = ["is_long()", "usual(", "PAGODA_LONG_TESTS"].iter().any(|word| text.contains(word));
        // This file spells what it looks for, and what all modules share is in the first.
        if !has_one || path.ends_with(file!()) || module == "main" {
            continue;
        }
        count += 1;
        let module = format!("{}::", module.replace('/', "::"));
        let selects = |filter: &&str| module.contains(filter) || text.contains(&format!("fn {filter}"));
        if !runs.iter().any(|(of, filters)| *of == program && filters.iter().any(selects)) {
            left_out.push(shown);
        }
    }
    assert!(left_out.is_empty(), ".ci/long does not run the long forms of {left_out:?}");
    assert!(count > 30, "{count} files with long forms were found");
}
