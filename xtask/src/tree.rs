//! The workspace's files, for the tidy checks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// The folder of the workspace's `Cargo.toml`.
///
/// # Panics
///
/// Never: this package is a folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// [`root`], or an error if the sources are no longer there. Commands that build or read the sources need it.
///
/// # Errors
/// If they are not, as on machines that have the program alone.
pub fn checkout() -> Result<&'static Path> {
    let manifest = root().join("Cargo.toml");
    ensure!(
        manifest.is_file(),
        "{} is not there: this needs a checkout of the sources, and the program that `cargo xtask` builds in it",
        manifest.display()
    );
    Ok(root())
}

/// Paths of all files below `folder`, relative to it and sorted, without hidden and build folders.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        for entry in fs::read_dir(folder.join(&below)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let path = below.join(&name);
            match entry.file_type() {
                Ok(kind) if kind.is_file() => files.push(path),
                Ok(kind) if kind.is_dir() && !skipped(&name.to_string_lossy()) => open.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    files
}

fn skipped(folder: &str) -> bool {
    folder == "target" || (folder.starts_with('.') && !matches!(folder, ".ci" | ".cargo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_and_build_folders_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["b/c.rs", "a.md", "target/x", ".git/y", ".ci/run", ".hidden"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        assert_eq!(files(folder.path()), [".ci/run", ".hidden", "a.md", "b/c.rs"].map(PathBuf::from));
    }
}
