//! Contract of every tier, whatever it is made of. Each tier's tests run these.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use kvblock::BlockHash;
use prefetch::changes::Changes;
use prefetch::testing::FakeTier;
use prefetch::tier::{BlockLayout, Stored, Tier, TierError};
use proptest::prelude::*;

/// Three shards of 40 bytes: no power of two, no page.
pub(crate) fn layout() -> BlockLayout {
    BlockLayout::new(3, 40).expect("small and not empty")
}

pub(crate) fn key(n: u16) -> BlockHash {
    let mut bytes = [7; 32];
    bytes[..2].copy_from_slice(&n.to_le_bytes());
    BlockHash::from_bytes(bytes)
}

/// The only bytes that a block ever has in these tests, as content hashes promise.
pub(crate) fn block(n: u16) -> Vec<u8> {
    FakeTier::contents(layout(), key(n))
}

/// A configuration for slow properties: `few` cases, or as many as `PROPTEST_CASES` asks for.
#[cfg(any(feature = "disk", feature = "remote"))]
pub(crate) fn cases(few: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(few),
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write(u16),
    Read(u16),
    ReadShard(u16, u32),
    Remove(u16),
    Flush,
}

pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let n = || 0u16..20;
    let op = prop_oneof![
        4 => n().prop_map(Op::Write),
        3 => n().prop_map(Op::Read),
        2 => (n(), 0u32..3).prop_map(|(n, shard)| Op::ReadShard(n, shard)),
        1 => n().prop_map(Op::Remove),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 0..60)
}

/// Runs `ops` and checks every answer: what is there is whole, what was not written is not there, a write
/// evicts only where the tier is full and then one block, and nothing else makes a block go.
pub(crate) fn check_ops(tier: &dyn Tier, ops: &[Op]) -> Result<(), TestCaseError> {
    let capacity = tier.capacity_blocks().map_or(usize::MAX, |blocks| usize::try_from(blocks).unwrap());
    let mut held: BTreeSet<u16> = BTreeSet::new();
    let mut whole = vec![0; layout().block_bytes()];
    let mut part = vec![0; layout().shard_bytes()];
    for op in ops {
        let now: BTreeSet<u16> = match *op {
            Op::Write(n) => {
                let stored = tier.write(key(n), &block(n)).unwrap();
                prop_assert_eq!(
                    stored,
                    if held.contains(&n) { Stored::AlreadyThere } else { Stored::Written }
                );
                let now = present(tier);
                prop_assert!(now.contains(&n), "a finished write is visible");
                let may_be: BTreeSet<u16> = held.iter().copied().chain([n]).collect();
                prop_assert!(now.is_subset(&may_be));
                prop_assert_eq!(now.len(), may_be.len().min(capacity));
                now
            }
            Op::Read(n) => match tier.read_block(key(n), &mut whole) {
                Ok(()) => {
                    prop_assert_eq!(&whole, &block(n));
                    present(tier)
                }
                Err(TierError::NotFound { .. }) if !held.contains(&n) => present(tier),
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            },
            Op::ReadShard(n, shard) => match tier.read(key(n), shard, &mut part) {
                Ok(()) => {
                    prop_assert_eq!(&part[..], &block(n)[layout().shard_range(shard).unwrap()]);
                    present(tier)
                }
                Err(TierError::NotFound { .. }) if !held.contains(&n) => present(tier),
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            },
            Op::Remove(n) => {
                prop_assert_eq!(tier.remove(key(n)).unwrap(), held.remove(&n));
                present(tier)
            }
            Op::Flush => {
                tier.flush().unwrap();
                present(tier)
            }
        };
        if matches!(op, Op::Write(_)) {
            held = now;
        } else {
            prop_assert_eq!(&now, &held);
        }
    }
    Ok(())
}

/// Runs `ops`, on a tier that puts its changes into `changes`: after each, whoever follows them knows what is there. `held` is
/// what was there before, of which `changes` tells.
pub(crate) fn check_changes(
    tier: &dyn Tier,
    changes: &Changes,
    held: &BTreeSet<u16>,
    ops: &[Op],
) -> Result<BTreeSet<u16>, TestCaseError> {
    let mut followed = BTreeSet::new();
    let mut follow = || {
        for change in changes.take() {
            assert_eq!(change.tier, tier.name());
            let n = (0..20).find(|&n| key(n) == change.key).expect("a key of this test");
            let _ = if change.held { followed.insert(n) } else { followed.remove(&n) };
        }
        followed.clone()
    };
    prop_assert_eq!(&follow(), held);
    let (mut whole, mut part) = (vec![0; layout().block_bytes()], vec![0; layout().shard_bytes()]);
    for op in ops {
        match *op {
            Op::Write(n) => assert!(tier.write(key(n), &block(n)).is_ok()),
            Op::Read(n) => drop(tier.read_block(key(n), &mut whole)),
            Op::ReadShard(n, shard) => drop(tier.read(key(n), shard, &mut part)),
            Op::Remove(n) => assert!(tier.remove(key(n)).is_ok()),
            Op::Flush => tier.flush().unwrap(),
        }
        prop_assert_eq!(follow(), present(tier));
        prop_assert_eq!(follow(), present(tier), "a lookup changes nothing");
    }
    Ok(follow())
}

fn present(tier: &dyn Tier) -> BTreeSet<u16> {
    let keys: Vec<_> = (0..20).map(key).collect();
    let held = tier.contains_many(&keys).unwrap();
    (0..20).filter(|&n| held[usize::from(n)]).inspect(|&n| assert!(tier.contains(key(n)).unwrap())).collect()
}

/// Sizes and shards that do not fit are refused, and nothing is stored.
pub(crate) fn check_refusals(tier: &dyn Tier) {
    let wrong = tier.write(key(1), &[0; 119]).unwrap_err();
    assert_eq!(wrong.to_string(), "buffer of 119 bytes where 120 are needed");
    assert!(!tier.contains(key(1)).unwrap());
    tier.write(key(1), &block(1)).unwrap();
    assert!(matches!(
        tier.read(key(1), 3, &mut [0; 40]),
        Err(TierError::NoSuchShard { shard: 3, shards: 3 })
    ));
    assert!(matches!(tier.read(key(1), 0, &mut [0; 41]), Err(TierError::WrongSize { .. })));
    assert!(matches!(tier.read_block(key(1), &mut [0; 40]), Err(TierError::WrongSize { .. })));
}

/// Readers beside writers that evict: a read gives the right bytes or none.
pub(crate) fn check_threads(tier: &dyn Tier) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2u16 {
            let stop = &stop;
            scope.spawn(move || {
                let mut whole = vec![0; layout().block_bytes()];
                let mut n = reader;
                while !stop.load(Ordering::Relaxed) {
                    n = (n * 5 + 3) % 40;
                    match tier.read_block(key(n), &mut whole) {
                        Ok(()) => assert_eq!(whole, block(n)),
                        Err(TierError::NotFound { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2u16)
            .map(|writer| {
                scope.spawn(move || {
                    for i in 0..150 {
                        let n = (i * 7 + writer * 11) % 40;
                        tier.write(key(n), &block(n)).unwrap();
                    }
                })
            })
            .collect();
        let finished: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        finished.into_iter().for_each(|writer| writer.unwrap());
    });
}
