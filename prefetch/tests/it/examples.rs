//! The examples, run.

#[cfg(all(target_os = "linux", feature = "disk"))]
#[expect(dead_code, reason = "its main function")]
#[path = "../../examples/disk_speed.rs"]
mod disk_speed;
#[path = "../../examples/two_tiers.rs"]
mod two_tiers;

/// A block that was read once is in the host tier from then on.
#[test]
fn one_read_is_served_and_one_is_cancelled() {
    insta::assert_snapshot!(two_tiers::run().unwrap(), @"disk, then host; loaded 1; cancelled");
}

/// Both ways read what was written, and their speeds are told.
#[cfg(all(target_os = "linux", feature = "disk"))]
#[test]
fn disks_are_measured_in_two_ways() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let told = disk_speed::disk::measure(folder.path(), 70, 65_536).unwrap();
    let parts = ["\"blocks\":70", "\"tier_gb_s\":{\"median\":", "\"direct_gb_s\":", "\"of_direct\":"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
}
