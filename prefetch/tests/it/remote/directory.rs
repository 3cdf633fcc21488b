//! Plain directories as remote tier: the Posix layout, partial files, damage, and writers that are killed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use prefetch::changes::Changes;
use prefetch::testing::FakeTier;
use prefetch::tier::{BlockLayout, RemoteTier, Stored, Tier as _, TierError};
use proptest::prelude::*;

use super::{config, read};
use crate::conformance::{block, cases, check_changes, check_ops, check_refusals, check_threads, key, ops};
use crate::time::until;

fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn directories(paths: &[&Path], dir_shard_chars: Option<u8>) -> Result<RemoteTier, TierError> {
    let paths: Vec<_> = paths.iter().map(|path| path.to_path_buf()).collect();
    RemoteTier::directories(&paths, dir_shard_chars, config("directories"))
}

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn directories_keep_the_rules_of_tiers(ops in ops(), chars in prop::option::of(0u8..4)) {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        check_ops(&directories(&[first.path(), second.path(), first.path()], chars).unwrap(), &ops)?;
        let changes = Changes::default();
        let config = config("changes").changes(changes.clone());
        let tier = RemoteTier::directories(&[first.path().to_owned()], chars, config).unwrap();
        check_changes(&tier, &changes, &BTreeSet::new(), &ops)?;
    }
}

#[test]
fn directories_serve_threads_and_refuse_what_does_not_fit() {
    let directory = tempfile::tempdir().unwrap();
    check_refusals(&directories(&[directory.path()], None).unwrap());
    check_threads(&directories(&[directory.path()], Some(2)).unwrap());
}

#[test]
fn blocks_lie_in_the_posix_layout_and_several_directories_share_them_out() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tier = directories(&[first.path(), second.path()], None).unwrap();
    (0..20).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    let (in_first, in_second) = (files(first.path()), files(second.path()));
    assert_eq!(in_first.len() + in_second.len(), 20);
    assert!(!in_first.is_empty() && !in_second.is_empty());
    let hex: String = key(0).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(in_first.iter().chain(&in_second).any(|path| path.ends_with(format!("data/{hex}"))));

    let missing = first.path().join("not mounted");
    let error = directories(&[first.path(), &missing], None).err().unwrap();
    assert!(matches!(&error, TierError::Directory { path, .. } if *path == missing), "{error}");
    assert!(!missing.exists());
}

#[test]
fn a_partial_file_hides_the_block_until_its_writer_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let tier = directories(&[directory.path()], None).unwrap();
    tier.write(key(1), &block(1)).unwrap();
    let path = files(directory.path()).remove(0);
    let partial = path.with_extension("tmp");
    std::fs::rename(&path, &partial).unwrap();
    // Another engine seems to be writing.
    assert!(!tier.contains(key(1)).unwrap());
    assert_eq!(tier.write(key(1), &block(1)).unwrap(), Stored::AlreadyThere);
    assert!(partial.exists() && !path.exists());
    // It died a while ago.
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&partial).unwrap().set_modified(old).unwrap();
    assert_eq!(tier.write(key(1), &block(1)).unwrap(), Stored::Written);
    assert!(!partial.exists() && path.exists());

    // A file cut short by a full disk is refused, removed, and written again.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = read(&tier, 1).unwrap_err();
    assert!(matches!(error, TierError::Corrupt { shard: 2, .. }), "{error}");
    assert_eq!(tier.write(key(1), &block(1)).unwrap(), Stored::Written);
    assert_eq!(read(&tier, 1).unwrap(), block(1));
    // The same by a read of one shard that lies beyond the end.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(96).unwrap();
    let error = tier.read(key(1), 2, &mut [0; 40]).unwrap_err();
    assert!(matches!(error, TierError::Corrupt { shard: 2, .. }), "{error:?}");
    assert!(!tier.contains(key(1)).unwrap());
}

/// The child of the next test: writes to a directory until it is killed.
#[test]
fn crash_child() {
    let Ok(directory) = std::env::var("PREFETCH_CRASH_DIRECTORY") else { return };
    let tier = large(Path::new(&directory));
    for n in (0..64).cycle() {
        tier.write(key(n), &FakeTier::contents(tier.layout(), key(n))).unwrap();
        tier.remove(key((n + 40) % 64)).unwrap();
    }
}

fn large(directory: &Path) -> RemoteTier {
    let layout = BlockLayout::new(3, 100_000).unwrap();
    let mut config = config("crash");
    config.layout = layout;
    RemoteTier::directories(&[directory.to_owned()], None, config).unwrap()
}

#[test]
fn a_writer_killed_at_any_time_leaves_whole_objects_only() {
    let directory = tempfile::tempdir().unwrap();
    let tier = large(directory.path());
    let mut bytes = vec![0; tier.layout().block_bytes()];
    let mut found = 0;
    for round in 0..12 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["remote::directory::crash_child", "--exact"])
            .env("PREFETCH_CRASH_DIRECTORY", directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let count = || files(directory.path()).len();
        let before = count();
        // Every second one has written a whole block, and never removes all.
        until("the writer writes", || match round % 2 {
            0 => count() != before,
            _ => (0..64).any(|n| tier.contains(key(n)).unwrap()),
        });
        std::thread::sleep(Duration::from_micros(round * 3391 % 20_000));
        writer.kill().unwrap();
        assert!(!writer.wait().unwrap().success());
        for n in 0..64 {
            match tier.read_block(key(n), &mut bytes) {
                Ok(()) => {
                    assert!(bytes == FakeTier::contents(tier.layout(), key(n)), "block {n} is wrong");
                    found += 1;
                }
                Err(TierError::NotFound { .. }) => {}
                Err(error) => panic!("round {round}, block {n}: {error}"),
            }
        }
        for n in 0..64 {
            tier.remove(key(n)).unwrap();
        }
    }
    assert!(found >= 6, "{found} blocks were found after 12 kills");
}
