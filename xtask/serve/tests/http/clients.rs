//! The clients that people use, from their registries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use crate::fixture::shared;

const REQUIREMENTS: &str = include_str!("../clients/requirements.txt");

/// The folder that the packages are installed in, once for all runs with the same requirements.
static PACKAGES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-clients");
    let installed = folder.join("requirements.txt");
    if fs::read_to_string(&installed).is_ok_and(|known| known == REQUIREMENTS) {
        return folder;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]);
    pip.arg("--target").arg(&folder).arg("-r").arg(clients().join("requirements.txt"));
    succeed(&mut pip);
    fs::write(installed, REQUIREMENTS).unwrap();
    folder
});

fn clients() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "clients"].iter().collect()
}

const NODE_PACKAGES: &str = include_str!("../clients/package.json");

/// The folder that the packages of Node.js are installed in, once for all runs with the same versions.
static MODULES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-clients");
    let installed = folder.join("installed.json");
    if fs::read_to_string(&installed).is_ok_and(|known| known == NODE_PACKAGES) {
        return folder;
    }
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("package.json"), NODE_PACKAGES).unwrap();
    let mut npm = Command::new("npm");
    succeed(
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder),
    );
    fs::write(installed, NODE_PACKAGES).unwrap();
    folder
});

/// Runs a command, which must succeed.
#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    output
}

fn python() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", &*PACKAGES);
    python
}

#[test]
fn python_clients_read_every_reply() {
    let base = format!("http://{}", shared().address);
    succeed(python().arg(clients().join("clients.py")).args([&base, "tiny"]));
}

#[test]
fn the_client_for_node_reads_every_reply() {
    let base = format!("http://{}", shared().address);
    let mut node = Command::new("node");
    node.arg(clients().join("clients.mjs")).arg(&*MODULES).args([&base, "tiny"]);
    succeed(&mut node);
}

/// A suite of others, which holds replies to the specifications of three APIs. Not asked are images, which no model here
/// sees, and what needs a model that ends its answers by itself, which random weights do not: answers run to the end of the
/// context, so `PAGODA_LONG_TESTS=1` runs it.
#[test]
fn the_apis_comply() {
    if std::env::var_os("PAGODA_LONG_TESTS").is_none() {
        return;
    }
    let base = format!("http://{}/v1", shared().address);
    for (format, tests) in [
        ("openai-chat", "chat-streaming-response,chat-streaming-usage"),
        ("open-responses", "compact-missing-model,error-handling"),
        ("anthropic", "anth-streaming-response,anth-streaming-usage,anth-error-handling"),
    ] {
        let mut comply = python();
        comply.args([
            "-m",
            "llm_comply.cli",
            "--format",
            format,
            "--filter",
            tests,
            "-u",
            &base,
            "-m",
            "tiny",
        ]);
        succeed(comply.args(["-k", "any", "--json"]));
    }
}
