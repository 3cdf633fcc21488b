//! Texts of tiers, and the files of a disk tier, changed at random: an error, or something that works.
//!
//! `PREFETCH_MUTATIONS` sets how many; the seed is fixed, so that a failure repeats itself.

use std::path::Path;
use std::sync::Arc;

use prefetch::spec::TierSpec;
use prefetch::testing::{Rng, SimVolume};
use prefetch::tier::{DiskConfig, DiskTier, Stored, Tier as _, TierError};

use crate::conformance::{block, key, layout};

fn rounds(default: u64) -> u64 {
    std::env::var("PREFETCH_MUTATIONS").map_or(default, |text| text.parse().expect("a whole number"))
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(3) {
        if bytes.len() < 2 {
            return;
        }
        let (at, other) = (rng.index(bytes.len()), rng.index(bytes.len()));
        let run = 1 + rng.index((bytes.len() - at.max(other)).min(64));
        match rng.below(7) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.bits().to_le_bytes()[0],
            2 => bytes.truncate(at),
            3 => bytes.copy_within(other..other + run, at),
            4 => drop(bytes.drain(at..at + run)),
            5 => bytes[at..at + run].fill(if rng.chance(500) { 0 } else { 255 }),
            _ => {
                let odd = [0, 1, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX][rng.index(6)].to_le_bytes();
                let end = bytes.len().min(at + odd.len());
                bytes[at..end].copy_from_slice(&odd[..end - at]);
            }
        }
    }
}

#[test]
fn texts_of_tiers() {
    let sources = [
        "host=4GiB,disk=/srv/kv:8GiB,remote=redis://host:6379/3,failure=fail",
        "disk=/a/b:1TiB,compress=fp8,mac=env:KEY,tenant=anna",
        "remote=s3://bucket/some/prefix,mac=file:/etc/key,compress=int8",
        "remote=file:///shared/kv,host=512MiB",
    ];
    let (mut taken, mut refused) = (0, 0);
    for (index, source) in (0..).zip(sources) {
        for round in 0..rounds(500) {
            let mut bytes = source.as_bytes().to_vec();
            mutate(&mut Rng::new(index << 32 | round), &mut bytes);
            match String::from_utf8_lossy(&bytes).parse::<TierSpec>() {
                // What is taken has a text of its own, which says the same.
                Ok(spec) => {
                    let again = spec.to_string().parse::<TierSpec>();
                    assert!(again.as_ref().is_ok_and(|again| *again == spec), "{spec:?}: {again:?}");
                    taken += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    eprintln!("{taken} changed texts were taken, {refused} refused");
    assert!(refused > 0);
}

#[test]
fn files_of_a_disk_tier() {
    let open = |volume: &SimVolume| {
        DiskTier::on(
            Arc::new(volume.clone()),
            DiskConfig::new(Path::new("simulated"), layout(), "mutated", 8 * 4096),
        )
    };
    let (mut opened, mut refused, mut survived, mut bad) = (0, 0, 0, 0);
    for round in 0..rounds(1500) {
        let mut rng = Rng::new(round);
        let volume = SimVolume::new(round, 1 << 20);
        let tier = open(&volume).expect("an empty disk");
        (0..6).for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
        tier.flush().unwrap();
        drop(tier);
        let names = volume.names();
        for _ in 0..=rng.below(2) {
            volume.change(&names[rng.index(names.len())], |bytes| mutate(&mut rng, bytes));
        }
        let Ok(tier) = open(&volume) else {
            refused += 1;
            continue;
        };
        opened += 1;
        let mut bytes = vec![0; layout().block_bytes()];
        for n in 0..8 {
            match tier.read_block(key(n), &mut bytes) {
                Ok(()) => {
                    assert_eq!(bytes, block(n), "round {round}, block {n}");
                    survived += 1;
                }
                Err(TierError::NotFound { .. }) => {}
                Err(_) => bad += 1,
            }
        }
        // It goes on: every block can be written again, and is then there.
        for n in 0..8 {
            assert!(tier.write(key(n), &block(n)).is_ok(), "round {round}, block {n}");
            tier.read_block(key(n), &mut bytes)
                .unwrap_or_else(|error| panic!("round {round}, block {n}: {error}"));
            assert_eq!(bytes, block(n));
        }
    }
    eprintln!(
        "{opened} changed disks opened, {refused} refused; {survived} blocks survived, {bad} were found bad"
    );
    assert!(opened > 0 && survived > 0 && bad > 0);
}
