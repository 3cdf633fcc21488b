//! Packages as people outside of this tree get them: of bounded size, and building from their own files, with the lines that
//! their READMEs say to write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use xtask::tree;

/// The libraries: folder, package, and the kilobytes that its archive may have.
const LIBRARIES: [(&str, &str, u64); 10] = [
    ("kvblock", "kvblock", 1000),
    ("sparse-select", "sparse-select", 1000),
    ("attn-kernels", "attn-kernels", 1000),
    ("prefetch", "pagoda-prefetch", 1000),
    ("scheduler", "pagoda-scheduler", 1000),
    ("models/checkpoint", "pagoda-checkpoint", 1000),
    ("models/dense-kernels", "pagoda-dense-kernels", 1000),
    ("models", "pagoda-models", 2000),
    ("xtask/pagoda", "pagoda-engine", 1000),
    ("xtask/serve", "pagoda-serve", 1000),
];

/// Runs cargo, which must succeed.
#[track_caller]
fn cargo(args: &[&str], folder: &Path, target: &Path) {
    let mut cargo = Command::new(env!("CARGO"));
    // Everything that the packages build on was fetched to build this test.
    cargo.args(args).args(["--offline", "--target-dir"]).arg(target).current_dir(folder);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder in the target folder.
fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The folder with the archives `NAME-VERSION.crate`.
fn archives() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let to = target("packages");
        let args = ["package", "--workspace", "--exclude", "xtask", "--no-verify", "--allow-dirty"];
        cargo(&args, tree::root(), &to);
        to.join("package")
    })
}

fn archive(package: &str) -> PathBuf {
    archives().join(format!("{package}-{}.crate", env!("CARGO_PKG_VERSION")))
}

#[test]
fn packages_are_small() {
    for (_, package, max_kb) in LIBRARIES.into_iter().chain([("xtask/cli", "pagoda-cli", 1000)]) {
        let bytes = fs::metadata(archive(package)).unwrap().len();
        eprintln!("{package} {} KB", bytes.div_ceil(1000));
        assert!(bytes <= max_kb * 1000, "{package} has {bytes} bytes, more than {max_kb} KB");
    }
}

/// The lines below `[dependencies]` in a README.
fn dependencies(folder: &str) -> String {
    let readme = fs::read_to_string(tree::root().join(folder).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```toml\n[dependencies]\n").unwrap_or_else(|| {
        panic!("{folder}/README.md does not say what to write below [dependencies]");
    });
    rest.split_once("```").expect("the block ends").0.to_string()
}

#[test]
fn readmes_say_what_to_write_below_dependencies() {
    for (folder, package, _) in &LIBRARIES {
        let line = format!("{package} = {{ path = \"../pagoda/{folder}\"");
        assert!(dependencies(folder).contains(&line), "{folder}/README.md does not have {line}");
    }
}

/// For each library a project of its own, with the lines of the README and the archives in place of checkout and registry,
/// runs the examples of that README. Takes minutes: wgpu is built once more.
#[test]
fn outside_projects_run_the_examples_of_the_readmes() {
    if std::env::var_os("PAGODA_LONG_TESTS").is_none() {
        return;
    }
    let unpacked = target("unpacked");
    fs::create_dir_all(&unpacked).unwrap();
    let mut patches = String::from("[patch.crates-io]\n");
    for (_, package, _) in LIBRARIES {
        let tar = Command::new("tar").arg("-xzf").arg(archive(package)).current_dir(&unpacked).status();
        assert!(tar.unwrap().success(), "{package} does not unpack");
        let folder = unpacked.join(format!("{package}-{}", env!("CARGO_PKG_VERSION")));
        patches += &format!("{package} = {{ path = {:?} }}\n", folder.display().to_string());
    }
    for (folder, package, _) in &LIBRARIES {
        let project = target("outside").join(package);
        fs::create_dir_all(project.join("src")).unwrap();
        let mut lines = dependencies(folder);
        for (folder, package, _) in LIBRARIES {
            let there = unpacked.join(format!("{package}-{}", env!("CARGO_PKG_VERSION")));
            lines = lines.replace(&format!("../pagoda/{folder}\""), &format!("{}\"", there.display()));
        }
        let head =
            "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n";
        let manifest = format!("{head}[dependencies]\n{lines}\n{patches}");
        fs::write(project.join("Cargo.toml"), manifest).unwrap();
        // The versions that this workspace has: nothing is asked of the registry.
        fs::copy(tree::root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
        let readme = unpacked.join(format!("{package}-{}/README.md", env!("CARGO_PKG_VERSION")));
        fs::write(
            project.join("src/lib.rs"),
            format!("#![doc = include_str!({:?})]\n", readme.display().to_string()),
        )
        .unwrap();
        cargo(&["test", "--doc", "--quiet"], &project, &target("outside-target"));
    }
}
