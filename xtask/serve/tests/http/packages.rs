//! Packages of clients from their registries, installed once for all runs with the same versions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// A Python with the clients that most programs use.
pub(crate) static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| pip("clients", "requirements.txt"));

/// The clients that most programs for Node.js use.
pub(crate) static NODE: LazyLock<PathBuf> =
    LazyLock::new(|| npm("node-clients", "package.json", &["--ignore-scripts"]));

/// The folder of the clients' programs.
pub(crate) fn clients() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "clients"].iter().collect()
}

/// A Python of its own with the packages in a list: those of the machine, which may need other versions, are not seen.
pub(crate) fn pip(name: &str, list: &str) -> PathBuf {
    let python = |folder: &Path| folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let folder = installed(&format!("python/{name}"), list, |folder| {
        // The machine's pip installs into it: one of its own is a package that some systems lack.
        succeed(Command::new("python3").args(["-m", "venv", "--clear", "--without-pip"]).arg(folder));
        let mut pip = Command::new("python3");
        // Most of the files that pip would compile are never imported.
        pip.args(["-m", "pip", "--python"]).arg(python(folder)).args(["install", "--quiet", "--no-compile"]);
        pip.args(["--disable-pip-version-check", "--root-user-action", "ignore"]);
        pip.arg("-r").arg(clients().join(list));
        pip
    });
    python(&folder)
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
    fs::create_dir_all(folder.parent().expect("it has a name")).unwrap();
    // Another test, of this program or another one, may be installing the same.
    let lock = File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
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
