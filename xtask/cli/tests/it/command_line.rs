//! Exit codes, and what goes to stdout and stderr.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn pagoda(args: &[&str]) -> Output {
    // The configuration of whoever runs the tests is none of theirs.
    Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(args)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn help_and_version_name_the_program() {
    let help = pagoda(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).contains("Usage: pagoda <COMMAND>"), "{}", stdout(&help));
    for command in [
        "run",
        "chat",
        "serve",
        "pull",
        "models",
        "doctor",
        "score",
        "tokenize",
        "bench",
        "completions",
        "man",
    ] {
        assert!(
            stdout(&help).lines().any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}"
        );
    }
    assert!(!stdout(&help).contains("xtask"), "{}", stdout(&help));
    assert!(stdout(&pagoda(&["run", "--help"])).contains("Usage: pagoda run [OPTIONS]"));
    assert_eq!(stdout(&pagoda(&["--version"])), concat!("pagoda ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_usage_exits_with_2_and_a_tip() {
    for (args, told) in [
        (&["help", "serv"][..], "a similar subcommand exists: 'serve'"),
        (&["run", "why", "is"], "stands in quotes"),
        (&["tokenize", "why", "is"], "stands in quotes"),
        (&["run"], "required arguments were not provided"),
        (&[], "Usage: pagoda"),
    ] {
        let output = pagoda(args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}");
        assert!(stderr(&output).contains(told), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_of_flags_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("pagoda")).unwrap();
    let file = folder.path().join("pagoda/config.toml");
    fs::write(&file, "\n[serve]\nports = 1\n").unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    serve.args(["serve", "--model", "none"]).env("XDG_CONFIG_HOME", folder.path());
    let output = serve.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    // Only Linux has this folder.
    if cfg!(target_os = "linux") {
        let told = format!("error: {}:3: serve has no key `ports`; did you mean `port`?\n", file.display());
        assert_eq!(stderr(&output), told);
    }
}

#[test]
fn a_variable_of_the_environment_is_a_flag() {
    let mut run = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    run.args(["run", "Hi"]).env("PAGODA_MODEL", "no-such-model").env("XDG_CONFIG_HOME", "/nonexistent");
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("model no-such-model: no such file"), "{}", stderr(&output));
}

#[test]
fn shells_and_man_get_their_files() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = pagoda(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).contains("max-tokens") && stdout(&output).contains("doctor"), "{shell}");
    }
    let page = pagoda(&["man"]);
    assert!(stdout(&page).contains(".TH pagoda 1"), "{}", stdout(&page));
    let folder = tempfile::tempdir().unwrap();
    let output = pagoda(&["man", "--out", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = fs::read_to_string(folder.path().join("pagoda-run.1")).unwrap();
    assert!(page.contains("max\\-tokens"), "{page}");
}

/// The model that tests of other packages have too.
fn tiny_llama() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/fixtures/tiny-llama").display().to_string()
}

#[test]
fn pull_prints_where_a_model_is() {
    let output = pagoda(&["pull", &tiny_llama()]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), format!("{}\n", tiny_llama()).as_str()));
    let output = pagoda(&["pull", "no-such-model"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
}
