//! Lists the kernels and the shared modules of their texts by the files in two folders.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("Cargo sets it"));
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("Cargo sets it"));
    let (kernels, modules) = (root.join("src/kernel"), root.join("wgsl/shared"));
    for folder in [&kernels, &modules] {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    write(
        &out.join("kernels.rs"),
        "vec!",
        files(&kernels, "rs")
            .iter()
            .filter(|path| declares(path))
            .map(|path| format!("&crate::kernel::{}::KERNEL", stem(path))),
    );
    write(
        &out.join("modules.rs"),
        "&",
        files(&modules, "wgsl").iter().map(|path| format!("({:?}, include_str!({path:?}))", stem(path))),
    );
}

/// Whether a file declares a kernel: others hold what several share.
fn declares(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().any(|line| line == "kernel! {")
}

/// Files of a folder and of those in it, by their names.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all = Vec::new();
    for path in entries.map(|entry| entry.expect("a folder that was opened is read").path()) {
        if path.is_dir() {
            all.extend(files(&path, extension));
        } else if path.extension().is_some_and(|of| of == extension) {
            all.push(path);
        }
    }
    all.sort_by_key(|path| stem(path));
    all
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("files have names").to_string_lossy().into_owned()
}

fn write(path: &Path, list: &str, items: impl Iterator<Item = String>) {
    let mut text = format!("{list}[\n");
    for item in items {
        writeln!(text, "    {item},").expect("a String takes every write");
    }
    text.push(']');
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
