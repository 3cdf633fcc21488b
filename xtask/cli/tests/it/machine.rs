//! A machine that lacks Python, for tests of what commands install.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A machine without Python, seen as root, on which a script in place of apt-get writes down how it was called.
pub(crate) struct Machine {
    folder: TempDir,
    program: &'static str,
}

impl Machine {
    /// The machine of a test of `program`, by its path.
    pub(crate) fn new(program: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, line) in [("apt-get", "echo \"$@\" >> \"$0.calls\""), ("id", "echo 0")] {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder, program }
    }

    /// Runs the program without a terminal.
    pub(crate) fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(self.program);
        command.args(args).stdin(Stdio::null()).env("PATH", self.folder.path());
        command
            .env("PAGODA_CACHE_DIR", self.folder.path().join("cache"))
            .env("XDG_CONFIG_HOME", self.folder.path());
        command.env_remove("CI").env_remove("PAGODA_INSTALL").envs(variables.iter().copied());
        command.output().unwrap()
    }

    /// Calls of apt-get.
    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.folder.path().join("apt-get.calls")).unwrap_or_default()
    }
}

/// Whether this system's packages are those of apt-get.
pub(crate) fn has_apt() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| text.contains("debian"))
}
