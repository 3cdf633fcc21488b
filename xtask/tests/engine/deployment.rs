//! The files of docs/fleet by which people deploy servers and watch them, held to real servers.
#![cfg(unix)]

mod dynamo;
mod manifests;
mod watching;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

use crate::fleet::packages;

static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| packages::python("deployment", "deployment.txt"));

/// The text of a file of docs/fleet.
fn text(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "docs", "fleet", name].iter().collect();
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Has a function of the script read a text.
#[track_caller]
fn read(function: &str, text: &str) -> Value {
    let mut python = Command::new(&*PYTHON);
    python.arg(packages::clients().join("deployment.py")).arg(function);
    let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{function} refuses the file");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The texts of a list.
#[track_caller]
fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}
