//! `kill -9` at a random byte, and at a random time, of an open dump: a store that is opened again has whole blocks
//! only, and keeps what was durable.
//!
//! `PREFETCH_CRASH_ROUNDS` sets the number of kills.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::hash::{BuildHasher as _, RandomState};

use prefetch::stack::TierStack;
use prefetch::store::{Store, StoreConfig};
use prefetch::testing::FakeTier;
use prefetch::tier::{BlockLayout, DiskConfig, DiskTier, Stored, Tier as _, TierError};

use crate::conformance::key;

/// Distinct blocks that children write.
const BLOCKS: u16 = 64;
const CAPACITY: u16 = 12;
const BLOCKS_PER_SYNC: u32 = 4;
const STREAMS: usize = 2;
/// Blocks that a kill may cost: those not yet synced, one in the hands of each stream, one that is evicted.
const LOSS_MAX: usize = BLOCKS_PER_SYNC as usize + STREAMS + 1;

/// Three shards in three pages: about as many bytes go to the slab as to the index.
fn layout() -> BlockLayout {
    BlockLayout::new(3, 4000).expect("small and not empty")
}

fn block(n: u16) -> Vec<u8> {
    FakeTier::contents(layout(), key(n))
}

fn open(directory: &Path) -> DiskTier {
    let mut config = DiskConfig::new(directory, layout(), "crash", u64::from(CAPACITY) * 12_288);
    config.blocks_per_sync = BLOCKS_PER_SYNC;
    config.direct = true;
    DiskTier::open(config).unwrap_or_else(|error| {
        panic!("a killed store opens: {error}: {:?}", std::error::Error::source(&error))
    })
}

/// Blocks that are there; none may be wrong.
fn held(tier: &DiskTier, blocks: u16) -> usize {
    let mut bytes = vec![0; layout().block_bytes()];
    let found = (0..blocks).filter(|&n| match tier.read_block(key(n), &mut bytes) {
        Ok(()) => {
            assert!(bytes == block(n), "block {n} is wrong");
            true
        }
        Err(TierError::NotFound { .. }) => false,
        Err(error) => panic!("block {n}: {error}"),
    });
    found.count()
}

/// The child: opens the store and dumps blocks, evicting others, until it is killed.
#[test]
fn crash_child() {
    let Ok(directory) = std::env::var("PREFETCH_CRASH_DIRECTORY") else { return };
    let directory = Path::new(&directory);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if let Ok(at_byte) = std::env::var("PREFETCH_CRASH_BYTE") {
        let notice = directory.join("killed in");
        let (at_byte, in_slab) =
            (at_byte.parse().unwrap(), std::env::var_os("PREFETCH_CRASH_IN_SLAB").is_some());
        let _ = super::pwrite::DEATH.set(super::pwrite::Death { at_byte, in_slab, notice });
    }
    let stack = Arc::new(TierStack::new(vec![Arc::new(open(directory))]).unwrap());
    let store = Store::new(stack.clone(), StoreConfig::UCM.streams(STREAMS)).unwrap();
    let seed = u16::try_from(std::process::id() % u32::from(BLOCKS)).unwrap();
    let mut open = std::collections::VecDeque::new();
    for i in 0u16.. {
        let n = seed.wrapping_add(i.wrapping_mul(5)) % BLOCKS;
        open.push_back(store.dump(vec![(key(n), Arc::from(block(n)))]).unwrap());
        while open.len() > 3 {
            store.wait(open.pop_front().expect("longer than 3")).unwrap();
        }
        if i % 16 == 15 {
            stack.remove(key(n.wrapping_add(30) % BLOCKS)).ok();
        }
        if i == 16 {
            std::fs::write(directory.join("running"), "").unwrap();
        }
    }
}

fn child(directory: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["disk::crash::crash_child", "--exact", "--test-threads=1"]);
    child.env("PREFETCH_CRASH_DIRECTORY", directory).stdout(Stdio::null());
    child
}

fn killed(mut child: Child) {
    use std::os::unix::process::ExitStatusExt as _;
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "the child ended by itself: {status}");
}

fn rounds(default: u64) -> u64 {
    std::env::var("PREFETCH_CRASH_ROUNDS").map_or(default, |rounds| rounds.parse().unwrap())
}

/// Opens what a killed process left, checks it, and sometimes fills it through every slot.
fn reopen(directory: &Path, round: u64) -> usize {
    let tier = open(directory);
    let survivors = held(&tier, BLOCKS);
    if round % 8 == 7 {
        let fresh = 100..100 + CAPACITY;
        fresh.for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
        assert_eq!(held(&tier, 100 + CAPACITY), usize::from(CAPACITY));
        // Out of the way of the next child.
        (100..100 + CAPACITY).for_each(|n| assert!(tier.remove(key(n)).unwrap()));
    }
    survivors
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn a_store_killed_at_any_byte_reopens_with_whole_blocks_only() {
    let random = RandomState::new();
    let mut directory = tempfile::tempdir().unwrap();
    let (mut before, mut survivors, mut in_slab, mut in_index) = (0, 0, 0, 0);
    let rounds = rounds(60);
    for round in 0..rounds {
        // One in four begins with nothing, and dies while the index is made or soon after.
        let is_new = round % 4 == 0;
        if is_new {
            directory = tempfile::tempdir().unwrap();
            before = 0;
        }
        let mut child = child(directory.path());
        let bytes = match round % 3 {
            0 => 8_000,
            _ => {
                child.env("PREFETCH_CRASH_IN_SLAB", "");
                600_000
            }
        };
        let at_byte = random.hash_one(round) % if is_new { bytes / 10 } else { bytes };
        killed(child.env("PREFETCH_CRASH_BYTE", at_byte.to_string()).spawn().unwrap());
        let notice = directory.path().join("killed in");
        let file = std::fs::read_to_string(&notice).expect("it died at a byte");
        std::fs::remove_file(notice).unwrap();
        match file.ends_with(".kv") {
            true => in_slab += 1,
            false => in_index += 1,
        }
        let left = reopen(directory.path(), round);
        assert!(left + LOSS_MAX >= before, "round {round}, byte {at_byte} of {file}: {left} of {before}");
        survivors += left;
        before = if round % 8 == 7 { 0 } else { left };
    }
    eprintln!(
        "{rounds} kills, {in_slab} in a slab and {in_index} in the index: {survivors} blocks survived, none wrong"
    );
    assert!(in_slab > 0 && in_index > 0 && survivors as u64 > rounds);
}

#[test]
fn a_store_killed_at_any_time_reopens_with_whole_blocks_only() {
    let directory = tempfile::tempdir().unwrap();
    let running = directory.path().join("running");
    let mut survivors = 0;
    let rounds = rounds(12);
    for round in 0..rounds {
        let _ = std::fs::remove_file(&running);
        let mut child = child(directory.path()).spawn().unwrap();
        let begin = Instant::now();
        while !running.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the child does not write");
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Spread over the phases of writing, syncing and evicting.
        std::thread::sleep(Duration::from_micros(round * 7919 % 40_000));
        child.kill().unwrap();
        killed(child);
        survivors += reopen(directory.path(), round);
    }
    eprintln!("{rounds} kills: {survivors} blocks survived, none wrong");
    assert!(survivors as u64 > rounds, "{survivors} blocks survived {rounds} kills");
}
