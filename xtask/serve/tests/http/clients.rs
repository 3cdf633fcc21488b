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
