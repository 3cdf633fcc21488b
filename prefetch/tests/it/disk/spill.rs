//! Spills: what is read is what was written last or an error, whatever the medium does, and memory stays bounded.

use std::sync::Arc;
use std::time::Duration;

use kvblock::{BlockHash, SeqId};
use prefetch::engine::{Engine, EngineConfig, Submission, TaskKey};
use prefetch::plan::Priority;
use prefetch::spec::TierSpec;
use prefetch::spill::{Spill, SpillRun, SpillShape, SpillTier};
use prefetch::stack::TierStack;
use prefetch::testing::{DiskFaults, SimVolume};
use prefetch::tier::{Access, Stored, Tier, Volume};
use proptest::prelude::*;

use crate::conformance::cases;

const SHAPE: SpillShape = SpillShape { regions: 3, blocks: 10, block_bytes: 24 };

fn on(volume: &SimVolume, staging_bytes: usize) -> Spill {
    let file = volume.open("spill", Access::Replace, true).unwrap();
    Spill::new(file, "spill", SHAPE, staging_bytes).unwrap()
}

fn run(region: u32, blocks: std::ops::Range<u32>) -> SpillRun {
    SpillRun { region, blocks }
}

/// Bytes of a run whose blocks are filled with `fill`, `fill + 1` and so on.
fn filled(run: &SpillRun, fill: u8) -> Vec<u8> {
    let block = |n| vec![fill.wrapping_add(n); SHAPE.block_bytes];
    (0..u8::try_from(run.blocks.len()).unwrap()).flat_map(block).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Write(SpillRun, u8),
    /// Reads runs, and gives up after so many pieces.
    Read(Vec<SpillRun>, usize),
}

fn a_run() -> impl Strategy<Value = SpillRun> {
    (0..SHAPE.regions, 0..SHAPE.blocks, 1..=4_u32)
        .prop_map(|(region, first, len)| run(region, first..(first + len).min(SHAPE.blocks)))
}

fn some_ops() -> impl Strategy<Value = Vec<Op>> {
    let write = (a_run(), any::<u8>()).prop_map(|(run, fill)| Op::Write(run, fill));
    let read = (prop::collection::vec(a_run(), 1..4), 0..20_usize).prop_map(|(runs, n)| Op::Read(runs, n));
    prop::collection::vec(prop_oneof![write, read], 1..60)
}

/// Runs `ops` beside an oracle in memory. Blocks are right, or told as lost and zero.
fn check(spill: &Spill, ops: &[Op], may_lose: bool) -> Result<(), TestCaseError> {
    let mut oracle = vec![vec![vec![0; SHAPE.block_bytes]; SHAPE.blocks as usize]; SHAPE.regions as usize];
    for op in ops {
        let (runs, most) = match op {
            Op::Write(run, fill) => {
                let bytes = filled(run, *fill);
                for (block, bytes) in run.blocks.clone().zip(bytes.chunks_exact(SHAPE.block_bytes)) {
                    oracle[run.region as usize][block as usize] = bytes.to_vec();
                }
                spill.write(run.clone(), bytes);
                continue;
            }
            Op::Read(runs, most) => (runs, *most),
        };
        let mut wanted = runs.iter().flat_map(|run| run.blocks.clone().map(|block| (run.region, block)));
        for piece in spill.read(runs).take(most) {
            let blocks = piece.run.blocks.clone().zip(piece.bytes.chunks_exact(SHAPE.block_bytes));
            for (block, bytes) in blocks {
                prop_assert_eq!(Some((piece.run.region, block)), wanted.next());
                let right = &oracle[piece.run.region as usize][block as usize];
                match piece.lost.iter().find(|lost| lost.block == block) {
                    None => prop_assert_eq!(bytes, &right[..]),
                    Some(lost) => prop_assert!(may_lose && bytes.iter().all(|byte| *byte == 0), "{}", lost),
                }
            }
        }
        prop_assert!(most < 20 || wanted.next().is_none(), "a read brings all of its runs");
    }
    spill.settle();
    Ok(())
}

proptest! {
    #![proptest_config(cases(64))]
    #[test]
    fn a_spill_holds_what_was_written_last(ops in some_ops(), staging in 1_usize..400, seed: u64) {
        let volume = SimVolume::new(seed, SHAPE.bytes());
        let mut faults = DiskFaults::default();
        (faults.short, faults.interrupted) = (200, 200);
        volume.set_faults(faults);
        check(&on(&volume, staging), &ops, false)?;
        (faults.read, faults.write, faults.flip) = (100, 100, 100);
        volume.set_faults(faults);
        check(&on(&volume, staging), &ops, true)?;
    }

    #[test]
    fn files_without_a_name_hold_it_too(ops in some_ops(), staging in 1_usize..400) {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("tier");
        let spec: TierSpec = format!("disk={}:1MiB", below.display()).parse().unwrap();
        let spill = spec.spill(SHAPE, staging).unwrap().unwrap();
        check(&spill, &ops, false)?;
        if cfg!(unix) {
            prop_assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0, "a file has a name");
        }
        drop(spill);
        prop_assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0, "a file is left");
    }
}

#[test]
fn no_more_is_read_ahead_than_there_is_memory_for() {
    let limit = 5 * SHAPE.block_bytes;
    let spill = on(&SimVolume::new(0, SHAPE.bytes()), limit);
    let all: Vec<SpillRun> = (0..SHAPE.regions).map(|region| run(region, 0..SHAPE.blocks)).collect();
    all.iter().for_each(|run| spill.write(run.clone(), filled(run, 1)));
    let (ahead, behind) = (spill.read(&all), spill.read(&all));
    let mut taken = 0;
    for piece in ahead.chain(behind) {
        // What is taken makes room before it is counted here.
        taken += piece.bytes.len();
        let read = usize::try_from(spill.traffic().read_bytes).unwrap();
        assert!(read <= taken + limit, "{read} bytes read, {taken} taken, {limit} may wait");
    }
    assert_eq!(taken as u64, 2 * SHAPE.bytes());
}

#[test]
fn errors_name_file_block_and_reason() {
    let volume = SimVolume::new(0, 8 * SHAPE.block_bytes as u64);
    let spill = on(&volume, 1000);
    let all = run(0, 0..SHAPE.blocks);
    (0..SHAPE.blocks).for_each(|block| spill.write(run(0, block..block + 1), filled(&run(0, 0..1), 3)));
    spill.settle();
    let lost = |spill: &Spill| -> Vec<String> {
        spill
            .read(std::slice::from_ref(&all))
            .flat_map(|piece| piece.lost)
            .map(|lost| lost.to_string())
            .collect()
    };
    let full = |block| format!("KV block {block} of spill cannot be written: no storage space");
    assert_eq!(lost(&spill), [full(8), full(9)]);
    volume.change("spill", |bytes| bytes[2 * SHAPE.block_bytes] ^= 1);
    let said = lost(&spill);
    assert!(
        said.len() == 3 && said[0].starts_with("KV block 2 of spill cannot be read: its bytes sum to"),
        "{said:?}"
    );
    // A block that is written anew is whole again.
    volume.set_capacity(SHAPE.bytes());
    [2, 8, 9].iter().for_each(|block| spill.write(run(0, *block..block + 1), filled(&run(0, 0..1), 4)));
    assert_eq!(lost(&spill), [""; 0]);
    assert_eq!(spill.traffic().errors, 2 + 2 + 3);
}

#[test]
fn folders_that_cannot_hold_it_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spec: TierSpec = format!("disk={}:1MiB", folder.path().display()).parse().unwrap();
    let huge = SpillShape { blocks: u32::MAX, block_bytes: 1 << 30, ..SHAPE };
    let refused = spec.spill(huge, 1 << 20).map(drop).unwrap_err().to_string();
    assert!(refused.contains("bytes free") && refused.contains(&huge.bytes().to_string()), "{refused}");
    assert!(TierSpec::new().spill(SHAPE, 1).unwrap().is_none());
}

/// A request to a spill beside writes.
#[derive(Clone, Debug)]
enum Ask {
    /// Another fill for both regions of a block.
    Write(u32, u32, u8),
    /// Blocks that may be needed.
    Predict(u32, Vec<u32>),
    /// Blocks that are needed now.
    Need(u32, Vec<u32>),
}

const LAYERS: SpillShape = SpillShape { regions: 4, blocks: 8, block_bytes: 16 };

fn some_asks() -> impl Strategy<Value = Vec<Ask>> {
    let blocks = || (0..2_u32, prop::collection::vec(0..LAYERS.blocks, 1..6));
    prop::collection::vec(
        prop_oneof![
            (0..2_u32, 0..LAYERS.blocks, any::<u8>())
                .prop_map(|(layer, block, fill)| Ask::Write(layer, block, fill)),
            blocks().prop_map(|(layer, blocks)| Ask::Predict(layer, blocks)),
            blocks().prop_map(|(layer, blocks)| Ask::Need(layer, blocks)),
        ],
        1..50,
    )
}

proptest! {
    #![proptest_config(cases(64))]
    /// Predictions that race with writes, on a disk whose calls fail in between: whatever is found under a block's name is what
    /// was written last, and the cache stays within its limit.
    #[test]
    fn predicted_blocks_are_those_that_were_written_last(
        asks in some_asks(),
        cache in 1..6_usize,
        workers in 1..4_usize,
        failing in prop::sample::select(&[0_u16, 0, 300][..]),
        seed: u64,
    ) {
        let volume = SimVolume::new(seed, u64::MAX);
        let mut faults = DiskFaults::default();
        (faults.short, faults.interrupted, faults.read) = (200, 100, failing);
        let file = volume.open("spill", Access::Replace, true).unwrap();
        volume.set_faults(faults);
        let spill = Arc::new(Spill::new(file, "spill", LAYERS, 64).unwrap());
        let tier = Arc::new(SpillTier::new(Arc::clone(&spill), 2).unwrap());
        let stack = Arc::new(TierStack::new(vec![tier.clone()]).unwrap());
        let limits = EngineConfig::GSA.prefetch_workers(workers).prefetch_cache_size(cache);
        let engine = Engine::new(stack, limits).unwrap();
        let mut oracle = [[0_u8; LAYERS.blocks as usize]; 2];
        for (generation, ask) in (0..).zip(&asks) {
            let submit = |layer: u32, blocks: &[u32], seq, priority| {
                let keys = blocks.iter().take(cache).map(|block| tier.key(2 * layer, *block)).collect();
                engine.submit(Submission::new(TaskKey { seq: SeqId::new(seq), generation }, priority, keys))
            };
            match ask {
                Ask::Write(layer, block, fill) => {
                    oracle[*layer as usize][*block as usize] = *fill;
                    for region in 2 * layer..2 * layer + 2 {
                        spill.write(run(region, *block..block + 1), vec![*fill; LAYERS.block_bytes]);
                    }
                }
                Ask::Predict(layer, blocks) => drop(submit(*layer, blocks, u64::from(*layer), Priority::Low)),
                Ask::Need(layer, blocks) => {
                    if let Ok(handle) = submit(*layer, blocks, 9, Priority::Urgent) {
                        let _ = handle.wait(Duration::from_secs(5));
                    }
                    for block in blocks {
                        let fill = oracle[*layer as usize][*block as usize];
                        match engine.load(tier.key(2 * layer, *block)) {
                            Ok(bytes) => prop_assert!(bytes.iter().all(|byte| *byte == fill), "{bytes:?}, not {fill}"),
                            Err(error) => prop_assert!(failing > 0, "{error}"),
                        }
                    }
                }
            }
            prop_assert!(engine.cached_blocks() <= cache);
        }
    }
}

#[test]
fn names_of_a_spill_are_of_its_blocks_as_they_are() {
    let spill = Arc::new(on(&SimVolume::new(1, u64::MAX), 1000));
    assert!(
        SpillTier::new(Arc::clone(&spill), 2).is_none() && SpillTier::new(Arc::clone(&spill), 0).is_none()
    );
    let tier = SpillTier::new(Arc::clone(&spill), 3).unwrap();
    let (before, mut bytes) = (tier.key(0, 4), vec![1; 3 * SHAPE.block_bytes]);
    tier.read_block(before, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "never written");
    spill.write(run(1, 4..5), vec![5; SHAPE.block_bytes]);
    assert!(!tier.contains(before).unwrap());
    let stale = tier.read_block(before, &mut bytes).unwrap_err().to_string();
    assert_eq!(stale, format!("block {before:?} is not in the disk tier"));
    tier.read_block(tier.key(0, 4), &mut bytes).unwrap();
    assert_eq!(bytes, [vec![0; 24], vec![5; 24], vec![0; 24]].concat());
    // Names of something else.
    for key in [[0xff; 32], [7; 32]] {
        assert!(!tier.contains(BlockHash::from_bytes(key)).unwrap());
    }
    assert_eq!(
        (tier.write(before, &bytes).unwrap(), tier.remove(before).unwrap()),
        (Stored::ReadOnly, false)
    );
    assert_eq!(tier.capacity_blocks(), Some(10));
}
