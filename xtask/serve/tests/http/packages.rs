//! Packages of clients from their registries, installed once for all runs with the same versions.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// A Python with the clients that most programs use.
pub(crate) static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| python("clients", "requirements.txt"));

/// The clients that most programs for Node.js use.
pub(crate) static NODE: LazyLock<PathBuf> =
    LazyLock::new(|| npm("node-clients", "package.json", &["--ignore-scripts"]));

/// The folder of the clients' programs.
pub(crate) fn clients() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "clients"].iter().collect()
}

/// uv, which installs packages of Python in a tenth of pip's processor time. pip brings it to every system.
fn uv() -> Command {
    let version = "uv==0.13.9";
    let folder = installed("uv", version, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]);
        pip.args(["--root-user-action", "ignore", "--upgrade", version, "--target"]).arg(folder);
        pip
    });
    let mut uv = Command::new(folder.join("bin/uv"));
    uv.args(["--quiet", "--no-config", "--no-python-downloads", "--system-certs"]);
    // uv reads none of pip's settings: these say where a machine's registry is, and whom it trusts.
    let settings = [
        ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
        ("PIP_FIND_LINKS", "UV_FIND_LINKS"),
        ("PIP_CERT", "SSL_CERT_FILE"),
    ];
    uv.envs(settings.into_iter().filter_map(|(pip, uv)| Some((uv, env::var_os(pip)?))));
    uv
}

/// A Python of its own with the packages in a list: those of the machine, which may need other versions, are not seen.
pub(crate) fn python(name: &str, list: &str) -> PathBuf {
    let python = |folder: &Path| folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let folder = installed(&format!("python/{name}"), &listed(list), |folder| {
        succeed(uv().args(["venv", "--clear", "--python", "python3"]).arg(folder));
        let mut install = uv();
        install.args(["pip", "install", "--python"]).arg(python(folder)).arg("-r").arg(clients().join(list));
        install
    });
    python(&folder)
}

/// A folder with the packages of Node.js in a list, installed with some flags.
pub(crate) fn npm(name: &str, list: &str, flags: &[&str]) -> PathBuf {
    installed(name, &listed(list), |folder| {
        fs::create_dir_all(folder).unwrap();
        fs::copy(clients().join(list), folder.join("package.json")).unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund"]).args(flags).current_dir(folder);
        npm
    })
}

/// The text of a list of packages.
fn listed(list: &str) -> String {
    fs::read_to_string(clients().join(list)).unwrap()
}

/// A folder in which what is wanted has been installed.
fn installed(name: &str, wanted: &str, install: impl FnOnce(&Path) -> Command) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(folder.parent().expect("it has a name")).unwrap();
    // Another test, of this program or another one, may be installing the same.
    let lock = File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let marker = folder.join("installed");
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
