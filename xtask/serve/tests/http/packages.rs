//! Packages of clients from their registries, installed once for all runs with the same versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The clients that most programs in Python use.
pub(crate) static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| pip("python-clients", "requirements.txt"));

/// The clients that most programs for Node.js use.
pub(crate) static NODE: LazyLock<PathBuf> =
    LazyLock::new(|| npm("node-clients", "package.json", &["--ignore-scripts"]));

/// The folder of the clients' programs.
pub(crate) fn clients() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "clients"].iter().collect()
}

/// A folder with the packages of Python in a list.
pub(crate) fn pip(name: &str, list: &str) -> PathBuf {
    installed(name, list, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]);
        pip.arg("--target").arg(folder).arg("-r").arg(clients().join(list));
        pip
    })
}

/// A folder with the packages of Node.js in a list, installed with some flags.
pub(crate) fn npm(name: &str, list: &str, flags: &[&str]) -> PathBuf {
    installed(name, list, |folder| {
        fs::create_dir_all(folder).unwrap();
        fs::copy(clients().join(list), folder.join("package.json")).unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund"]).args(flags).current_dir(folder);
        npm
    })
}

fn installed(name: &str, list: &str, install: impl FnOnce(&Path) -> Command) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (marker, wanted) = (folder.join("installed"), fs::read_to_string(clients().join(list)).unwrap());
    if fs::read_to_string(&marker).is_ok_and(|known| known == wanted) {
        return folder;
    }
    succeed(&mut install(&folder));
    fs::write(marker, wanted).unwrap();
    folder
}

/// Runs a command, which must succeed.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `cargo xtask test` sets up what tests need, and `cargo xtask doctor` says what is missing")
    });
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    output
}
