//! Stacks built from tier specs.

use insta::assert_snapshot;
use prefetch::assemble::StackConfig;
use prefetch::codec::RowLayout;
use prefetch::spec::TierSpec;
use prefetch::tier::{BlockLayout, TierName};

use super::hash;

fn config() -> StackConfig {
    let mut config = StackConfig::new(BlockLayout::new(2, 64).unwrap(), "test model");
    config.rows = Some(RowLayout::Contiguous { head_dim: 16 });
    config.blocks_per_sync = 4;
    config
}

fn error(text: &str) -> String {
    text.parse::<TierSpec>().unwrap().build(&config()).err().unwrap().to_string()
}

#[test]
fn a_host_spec_builds_and_holds_what_it_says() {
    let stack = "host=1KiB".parse::<TierSpec>().unwrap().build(&config()).unwrap();
    (0..20).for_each(|n| drop(stack.store(hash(n), &[n; 128]).unwrap()));
    assert_eq!((0..20).filter(|&n| stack.lookup(hash(n)).is_some()).count(), 8);
    // Memory is taken as blocks come.
    let stack = "host=1000TiB".parse::<TierSpec>().unwrap().build(&config()).unwrap();
    assert_eq!(stack.store(hash(1), &[1; 128]).unwrap(), [TierName::HOST]);
}

#[test]
fn what_cannot_be_built_is_named() {
    assert_snapshot!(error("host=100"), @"host tier of 100 bytes holds no block of 128 bytes");
    assert_snapshot!(error(""), @"a tier stack needs at least one tier");
    if cfg!(not(feature = "disk")) {
        assert_eq!(error("disk=/kv:1GiB"), "the disk tier needs the feature `disk`, which this build lacks");
    }
    if cfg!(not(feature = "s3")) {
        assert!(error("remote=s3://bucket").starts_with("the remote tier needs the feature"));
    }
}

/// All three tiers with compression: a second engine finds on the shared directory what the first wrote.
#[test]
#[cfg(all(feature = "disk", feature = "remote"))]
fn a_full_spec_shares_compressed_blocks_between_engines() {
    use half::f16;

    let [disks, shared] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let build = |disk: &str| {
        let path = disks.path().join(disk);
        let text = format!(
            "host=4KiB,disk={}:1MiB,remote=file://{},compress=fp8",
            path.display(),
            shared.path().display()
        );
        text.parse::<TierSpec>().unwrap().build(&config()).unwrap()
    };
    // Whole numbers up to 16 are fp8 values.
    let block: Vec<u8> = (0u8..64).flat_map(|n| f16::from_f32(f32::from(n % 17)).to_le_bytes()).collect();
    let first = build("first");
    assert_eq!(first.store(hash(1), &block).unwrap(), [TierName::HOST, TierName::DISK, TierName::REMOTE]);
    assert_eq!(std::fs::metadata(disks.path().join("first").join("slab-0000.kv")).unwrap().len(), 64);

    let second = build("second");
    let mut bytes = vec![0; 128];
    assert_eq!(second.load(hash(1), &mut bytes).unwrap(), TierName::REMOTE);
    assert_eq!(bytes, block);
    drop(second);
    assert_eq!(
        build("second").load(hash(1), &mut bytes).unwrap(),
        TierName::DISK,
        "it stayed after a restart"
    );
    assert_eq!(bytes, block);
}
