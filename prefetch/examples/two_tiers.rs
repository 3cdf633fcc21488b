//! Combines host memory with a slower tier of one's own, and cancels a read because its request ended.
//!
//! `cargo run -p pagoda-prefetch --features testing --example two_tiers`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use prefetch::engine::{Engine, EngineConfig, Submission, TaskKey, TaskOutcome};
use prefetch::kvblock::{BlockHash, SeqId};
use prefetch::plan::Priority;
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::testing::FakeTier;
use prefetch::tier::{BlockLayout, HostTier, TierName};

const LATENCY: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(not(test))]
#[expect(clippy::print_stdout, reason = "what happened")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run()?);
    Ok(())
}

/// Tells which tier served a block, before and after it was loaded, and how the cancelled read ended.
pub(crate) fn run() -> Result<String, Box<dyn Error>> {
    // Blocks of 2 layers with 64 bytes each. The slow tier has every block, each 50 ms away.
    let layout = BlockLayout::new(2, 64).ok_or("a block has a byte at least")?;
    let host = Arc::new(HostTier::new(layout, 8, PolicyKind::Lru, None));
    let slow = Arc::new(FakeTier::new(TierName::DISK, layout, LATENCY));
    let tiers = Arc::new(TierStack::new(vec![host, slow])?);
    let engine = Engine::new(Arc::clone(&tiers), EngineConfig::GSA.prefetch_workers(1))?;

    let [wanted, unwanted] = [1, 2].map(|byte| BlockHash::from_bytes([byte; 32]));
    let read = |seq, block| {
        Submission::new(TaskKey { seq: SeqId::new(seq), generation: 0 }, Priority::High, vec![block])
    };
    let before = tiers.lookup(wanted);
    let first = engine.submit(read(1, wanted))?;
    // Waits behind the first: there is one worker. Its request ends meanwhile.
    let second = engine.submit(read(2, unwanted))?;
    engine.cancel(SeqId::new(2));

    let first = first.wait(PATIENCE);
    let second = second.wait(PATIENCE);
    let loaded = engine.get(wanted).ok_or("a block that is ready is in the cache")?;
    assert_eq!(&loaded[..], &FakeTier::contents(layout, wanted)[..]);
    let after = tiers.lookup(wanted);
    let ended = |outcome: &TaskOutcome| match outcome {
        TaskOutcome::Ready { loaded, .. } => format!("loaded {loaded}"),
        TaskOutcome::Cancelled => "cancelled".to_string(),
        other => format!("{other:?}"),
    };
    let tier = |name: Option<TierName>| name.map_or("nowhere".to_string(), |name| name.to_string());
    Ok(format!("{}, then {}; {}; {}", tier(before), tier(after), ended(&first), ended(&second)))
}
