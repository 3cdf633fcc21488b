//! Commands install nothing, unless they were asked to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A machine without Python, seen as root, on which a script in place of apt-get writes down how it was called.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (program, line) in [("apt-get", "echo \"$@\" >> \"$0.calls\""), ("id", "echo 0")] {
            let path = folder.path().join(program);
            fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self(folder)
    }

    /// Runs the program without a terminal.
    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(args).stdin(Stdio::null()).env("PATH", self.0.path());
        command.env("PAGODA_CACHE_DIR", self.0.path().join("cache")).env("XDG_CONFIG_HOME", self.0.path());
        command.env_remove("CI").env_remove("PAGODA_INSTALL").envs(variables.iter().copied());
        command.output().unwrap()
    }

    /// Calls of apt-get.
    fn calls(&self) -> String {
        fs::read_to_string(self.0.path().join("apt-get.calls")).unwrap_or_default()
    }
}

/// Whether this system's packages are those of apt-get.
fn has_apt() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| text.contains("debian"))
}

#[test]
fn the_first_generate_of_a_checkout_installs() {
    if !has_apt() {
        return;
    }
    for variables in [&[][..], &[("CI", "true")], &[("PAGODA_INSTALL", "yes")]] {
        let machine = Machine::new();
        let output = machine.run(&["generate", "Hi"], variables);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("missing: Python 3 with pip; running apt-get update"), "{said}");
        let calls = machine.calls();
        assert!(calls.ends_with("--no-install-recommends python3 python3-pip\n"), "{variables:?}: {calls}");
    }
    let machine = Machine::new();
    let output = machine.run(&["generate", "Hi"], &[("PAGODA_INSTALL", "never")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("to install, run\n  apt-get update && apt-get install"), "{said}");
    assert_eq!((output.status.code(), machine.calls().as_str()), (Some(1), ""));
}

#[test]
fn a_server_installs_nothing() {
    for args in [&["serve", "--port", "0"][..], &["chat"], &["bench", "e2e"]] {
        let machine = Machine::new();
        let output = machine.run(args, &[("PAGODA_INSTALL", "yes")]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("missing: Python 3 with pip"), "{args:?}: {said}");
        assert_eq!((output.status.code(), machine.calls().as_str()), (Some(1), ""), "{args:?}");
    }
}
