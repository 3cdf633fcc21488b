//! Who may do what with the files of a disk tier.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use prefetch::stack::TierStack;
use prefetch::testing::SimVolume;
use prefetch::tier::{DiskTier, Stored, Tier, TierError, TierWarning};

use super::{config, held};
use crate::conformance::{block, key};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn folder_and_files_are_for_their_owner() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("kv").join("model");
    let tier = DiskTier::open(config(&directory, 8)).unwrap();
    tier.write(key(1), &block(1)).unwrap();
    assert_eq!((mode(&directory), mode(directory.parent().unwrap())), (0o700, 0o700));
    for file in ["lock", "blocks.index", "slab-0000.kv"] {
        assert_eq!(mode(&directory.join(file)), 0o600, "{file}");
    }
}

/// Whoever can make files in the folder must not make the tier write somewhere else.
#[test]
fn symbolic_links_are_not_followed() {
    let others = tempfile::tempdir().unwrap();
    let victim = others.path().join("precious");
    for name in ["lock", "blocks.index", "blocks.index.new", "slab-0000.kv"] {
        std::fs::write(&victim, "precious").unwrap();
        let directory = tempfile::tempdir().unwrap();
        symlink(&victim, directory.path().join(name)).unwrap();
        let opened = DiskTier::open(config(directory.path(), 8));
        match name {
            // What is there is replaced, not what it leads to.
            "blocks.index.new" => drop(opened.unwrap()),
            "slab-0000.kv" => {
                let error = opened.unwrap().write(key(1), &block(1)).unwrap_err();
                assert!(matches!(error, TierError::Backend { action: "opening a slab", .. }), "{error}");
            }
            _ => drop(opened.err().unwrap()),
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
}

#[test]
fn a_folder_that_everybody_can_write_to_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    set_mode(directory.path(), 0o1777);
    let error = DiskTier::open(config(directory.path(), 8)).err().unwrap();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "every user can write to it (mode 1777); name a folder below it");
    drop(DiskTier::open(config(&directory.path().join("own"), 8)).unwrap());
}

fn check_read_only(tier: DiskTier, blocks: &[u16]) {
    let warnings = tier.take_warnings();
    assert!(matches!(warnings[..], [TierWarning::ReadOnly { .. }]), "{warnings:?}");
    assert_eq!(held(&tier, 8), blocks);
    assert_eq!(tier.write(key(blocks[0]), &block(blocks[0])).unwrap(), Stored::AlreadyThere);
    assert_eq!(tier.write(key(9), &block(9)).unwrap(), Stored::ReadOnly);
    tier.flush().unwrap();
    let stack = TierStack::new(vec![Arc::new(tier)]).unwrap();
    assert_eq!(stack.store(key(9), &block(9)).unwrap(), []);
    assert_eq!(stack.counters().tier(prefetch::tier::TierName::DISK).errors, 0);
}

#[test]
fn a_read_only_volume_is_served() {
    let volume = SimVolume::new(1, 1 << 20);
    let open = |capacity| DiskTier::on(Arc::new(volume.clone()), config(Path::new("simulated"), capacity));
    let tier = open(8).unwrap();
    (0..6).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    drop(tier);
    volume.set_writable(false);
    check_read_only(open(8).unwrap(), &[0, 1, 2, 3, 4, 5]);
    // A smaller capacity drops nothing where nothing can be dropped.
    check_read_only(open(2).unwrap(), &[0, 1, 2, 3, 4, 5]);
    // A block that is damaged there is not asked for twice.
    volume.change("slab-0000.kv", |slab| slab[4096] ^= 1);
    let tier = open(8).unwrap();
    assert!(matches!(tier.read_block(key(1), &mut block(9)), Err(TierError::Corrupt { .. })));
    assert_eq!(held(&tier, 8), [0, 2, 3, 4, 5]);
}

/// The child of the next test: a user who may read the folder and nothing else.
#[test]
fn read_only_child() {
    let Ok(directory) = std::env::var("PREFETCH_READ_ONLY_DIRECTORY") else { return };
    let open = || DiskTier::open(config(Path::new(&directory), 8)).unwrap();
    let (first, second) = (open(), open());
    check_read_only(first, &[0, 1, 2]);
    check_read_only(second, &[0, 1, 2]);
    eprintln!("served");
}

#[test]
fn a_folder_that_cannot_be_written_is_served_to_several_readers() {
    let directory = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(config(directory.path(), 8)).unwrap();
    (0..3).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    drop(tier);
    for file in ["lock", "blocks.index", "slab-0000.kv"] {
        set_mode(&directory.path().join(file), 0o444);
    }
    set_mode(directory.path(), 0o555);
    // Another user than root, who may write anywhere; a copy of this program that the user can run.
    let program = directory.path().parent().unwrap().join(format!("prefetch-reader-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    set_mode(&program, 0o755);
    let mut child = Command::new(&program);
    child.args(["disk::access::read_only_child", "--exact", "--nocapture"]);
    child.env("PREFETCH_READ_ONLY_DIRECTORY", directory.path()).current_dir("/");
    if rustix::process::geteuid().is_root() {
        child.uid(65534).gid(65534);
    }
    let output = child.output();
    std::fs::remove_file(&program).unwrap();
    set_mode(directory.path(), 0o700);
    let output = output.unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("served"), "{said}");
}
