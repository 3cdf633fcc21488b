//! The engine on its threads, over a tier whose reads end when the test says, and with faults.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Duration;

use kvblock::SeqId;
use prefetch::counters::Overlap;
use prefetch::engine::{
    Engine, EngineConfig, EngineError, Handle, Submission, SubmitError, TaskKey, TaskOutcome,
};
use prefetch::plan::Priority;
use prefetch::stack::TierStack;
use prefetch::testing::{FakeTier, Fault};
use prefetch::tier::{TierError, TierName};

use super::{hash, hashes, layout};
use crate::time::{LONG, TestClock, until};

fn start(config: EngineConfig) -> (Engine, Arc<FakeTier>, Arc<TierStack>) {
    let tier = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::ZERO));
    let stack = Arc::new(TierStack::new(vec![tier.clone()]).unwrap());
    (Engine::new(stack.clone(), config).unwrap(), tier, stack)
}

fn task(seq: u64, blocks: impl IntoIterator<Item = u8>) -> Submission {
    let key = TaskKey { seq: SeqId::new(seq), generation: 0 };
    Submission::new(key, Priority::High, hashes(blocks))
}

#[track_caller]
fn assert_ready(outcome: &TaskOutcome) {
    assert!(matches!(outcome, TaskOutcome::Ready { .. }), "{outcome:?}");
}

#[test]
fn blocks_are_in_the_cache_when_the_handle_is_ready() {
    let (engine, tier, _) = start(EngineConfig::GSA);
    let handle = engine.submit(task(1, 0..8)).unwrap();
    assert_ready(&handle.wait(LONG));
    for block in hashes(0..8) {
        assert_eq!(engine.get(block).as_deref(), Some(&FakeTier::contents(layout(), block)[..]));
    }
    let again = engine.submit(task(2, 4..8)).unwrap();
    assert!(matches!(again.wait(LONG), TaskOutcome::Ready { loaded: 0, cached: 4 }));
    assert_eq!(tier.reads().len(), 8);
    assert!(engine.take(hash(3)).is_some() && engine.get(hash(3)).is_none());
    assert_eq!(&*engine.load(hash(3)).unwrap(), FakeTier::contents(layout(), hash(3)));
}

#[test]
fn memory_that_comes_back_serves_the_next_load() {
    let (engine, _, _) = start(EngineConfig::GSA.prefetch_cache_size(4));
    let load = |n| engine.load(hash(n)).unwrap();
    let (first, second) = (load(1), load(2));
    let at = first.as_ptr();
    engine.give_back(first);
    // One buffer is kept, and none that somebody still reads or that is no block.
    engine.give_back(second.clone());
    let third = load(3);
    assert_eq!(third.as_ptr(), at);
    assert_eq!(&*third, FakeTier::contents(layout(), hash(3)));
    engine.give_back(second.clone());
    engine.give_back(Arc::from([0; 3]));
    assert_eq!(&*load(4), FakeTier::contents(layout(), hash(4)));
    assert_eq!(&*second, FakeTier::contents(layout(), hash(2)));
}

#[test]
fn every_kind_of_failure_ends_the_wait_and_names_the_block() {
    let (engine, tier, stack) = start(EngineConfig::GSA);
    tier.fail(hash(1), Fault::Missing);
    tier.fail(hash(3), Fault::Panics);
    tier.fail(hash(4), Fault::Broken);
    let TaskOutcome::Failed(bad) = engine.submit(task(1, 0..6)).unwrap().wait(LONG) else {
        panic!("must fail")
    };
    assert_eq!(bad.iter().map(|b| b.position).collect::<Vec<_>>(), [1, 3, 4]);
    assert!(matches!(*bad[0].error, TierError::NotFound { .. }));
    assert!(matches!(*bad[1].error, TierError::Panicked { .. }));
    assert!(matches!(*bad[2].error, TierError::Backend { .. }));
    assert_eq!(engine.cached_blocks(), 3, "the good blocks are there");
    let counters = stack.counters().tier(TierName::DISK);
    assert_eq!((counters.hits, counters.misses, counters.errors), (3, 3, 2));
    // Workers survive the panic.
    assert_ready(&engine.submit(task(2, 10..20)).unwrap().wait(LONG));
}

/// Reads of these blocks wait until they are released.
fn hold(tier: &FakeTier, blocks: impl IntoIterator<Item = u8>) {
    blocks.into_iter().for_each(|block| tier.fail(hash(block), Fault::Held));
}

fn release(tier: &FakeTier, blocks: impl IntoIterator<Item = u8>) {
    blocks.into_iter().for_each(|block| tier.release(hash(block)));
}

#[test]
fn a_timeout_leaves_the_task_running() {
    let (engine, tier, _) = start(EngineConfig::GSA);
    hold(&tier, [1]);
    let handle = engine.submit(task(1, [1])).unwrap();
    assert!(matches!(handle.wait(Duration::from_millis(1)), TaskOutcome::Timeout));
    assert!(!handle.is_settled());
    release(&tier, [1]);
    assert_ready(&handle.wait(LONG));
}

#[test]
fn cancel_and_replacement_wake_the_waiter() {
    let (engine, tier, _) = start(EngineConfig::GSA.prefetch_workers(1));
    hold(&tier, [0]);
    let running = engine.submit(task(1, [0])).unwrap();
    tier.wait_for_reads(1);
    let by_handle = engine.submit(task(2, [1])).unwrap();
    let by_seq = engine.submit(task(3, [2])).unwrap();
    let replaced = engine.submit(task(4, [3])).unwrap();
    let newer = TaskKey { seq: SeqId::new(4), generation: 1 };
    let newest = engine.submit(task(4, [4]).key(newer)).unwrap();
    by_handle.cancel();
    assert!(engine.cancel(SeqId::new(3)) && !engine.cancel(SeqId::new(3)));
    replaced.cancel();
    for handle in [by_handle, by_seq, replaced] {
        assert!(matches!(handle.wait(Duration::ZERO), TaskOutcome::Cancelled));
    }
    release(&tier, [0]);
    assert_ready(&newest.wait(LONG));
    assert_ready(&running.wait(LONG));
    assert_eq!(tier.reads(), hashes([0, 4]), "cancelled blocks are never read");
}

/// Ends when a handle does whose block is held until the handle is pending, so that an executor must be woken.
async fn woken(mut handle: Handle, tier: Arc<FakeTier>, block: u8) -> TaskOutcome {
    assert!(!handle.is_settled(), "block {block} is held");
    let poll = move |cx: &mut Context<'_>| {
        let polled = Pin::new(&mut handle).poll(cx);
        if polled.is_pending() {
            release(&tier, [block]);
        }
        polled
    };
    std::future::poll_fn(poll).await
}

#[test]
fn pollster_and_tokio_drive_the_same_handles() {
    let (engine, tier, _) = start(EngineConfig::GSA);
    tier.fail(hash(9), Fault::Broken);
    hold(&tier, [3]);
    assert_ready(&pollster::block_on(woken(engine.submit(task(1, 0..4)).unwrap(), tier.clone(), 3)));

    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let waits = (2..6).map(|seq| {
        let first = u8::try_from(seq).unwrap() * 2;
        hold(&tier, [first]);
        let handle = engine.submit(task(seq, [first, first + 1])).unwrap();
        let ended = woken(handle, tier.clone(), first);
        runtime.spawn(async { tokio::time::timeout(LONG, ended).await.expect("in time") })
    });
    let outcomes: Vec<_> =
        waits.collect::<Vec<_>>().into_iter().map(|w| runtime.block_on(w).unwrap()).collect();
    for (seq, outcome) in (2..6).zip(&outcomes) {
        assert_eq!(matches!(outcome, TaskOutcome::Failed(_)), seq == 4, "{seq}: {outcome:?}");
    }
}

#[test]
fn shutdown_cancels_the_queue_and_joins() {
    let (engine, tier, stack) = start(EngineConfig::GSA.prefetch_workers(2));
    hold(&tier, 0..200);
    let handles: Vec<_> = (0..20u8)
        .map(|seq| engine.submit(task(seq.into(), (0..10).map(|b| seq * 10 + b))).unwrap())
        .collect();
    tier.wait_for_reads(2);
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for handle in &handles {
                let outcome = handle.wait(LONG);
                assert!(matches!(outcome, TaskOutcome::Cancelled), "{outcome:?}");
            }
            released.store(true, Ordering::Relaxed);
            release(&tier, 0..200);
        });
        engine.shutdown();
        assert!(released.load(Ordering::Relaxed), "the loads under way were not waited for");
    });
    assert_eq!(Arc::strong_count(&stack), 1, "a worker is left");
    assert_eq!(tier.reads().len(), 2, "one load of each worker");
}

#[test]
fn submissions_past_the_limit_are_refused_and_work_resumes() {
    let config = EngineConfig::GSA.prefetch_workers(1).max_pending_prefetch(2);
    let (engine, tier, _) = start(config);
    hold(&tier, [1]);
    let first = engine.submit(task(1, [1])).unwrap();
    let _second = engine.submit(task(2, [2])).unwrap();
    let refused = engine.submit(task(3, [3])).err();
    assert_eq!(refused, Some(SubmitError::QueueFull { pending_max: 2 }));
    release(&tier, [1]);
    assert_ready(&first.wait(LONG));
    assert_ready(&engine.submit(task(3, [3])).unwrap().wait(LONG));
    let zero = Engine::new(start(config).2, config.prefetch_workers(0));
    assert!(matches!(zero.err(), Some(EngineError::ZeroLimit { limit: "prefetch_workers" })));
}

#[test]
fn overlap_tells_waiting_from_hiding() {
    let clock: Arc<TestClock> = Arc::default();
    let tier = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::ZERO));
    let stack = Arc::new(TierStack::new(vec![tier.clone()]).unwrap());
    let engine = Engine::with_clock(stack.clone(), EngineConfig::GSA, clock.clone()).unwrap();
    assert_eq!(stack.counters().overlap().hidden(), None);
    let seconds = |transfer, waited| Overlap {
        transfer: Duration::from_secs(transfer),
        waited: Duration::from_secs(waited),
    };
    // All workers are in a read when this returns.
    let submit = |seq, blocks: Range<u8>| {
        let before = tier.reads().len();
        hold(&tier, blocks.clone());
        let handle = engine.submit(task(seq, blocks)).unwrap();
        tier.wait_for_reads(before + 4);
        handle
    };
    let release_after = |seconds, blocks: Range<u8>| {
        clock.advance(Duration::from_secs(seconds));
        release(&tier, blocks);
    };

    // Two of ten seconds pass before somebody waits.
    let handle = submit(1, 0..4);
    clock.advance(Duration::from_secs(2));
    assert_ready(&clock.while_waiting(|| handle.wait(LONG), || release_after(8, 0..4)));
    assert_eq!(stack.counters().overlap(), seconds(10, 8));
    assert_eq!(stack.counters().tier(TierName::DISK).wait, Duration::from_secs(8));

    let handle = submit(2, 10..14);
    clock.advance(Duration::from_secs(5));
    assert_ready(&clock.while_waiting(|| pollster::block_on(handle), || release_after(1, 10..14)));
    assert_eq!(stack.counters().overlap(), seconds(16, 9));

    let handle = submit(3, 20..24);
    release_after(4, 20..24);
    until("the blocks are there", || handle.is_settled());
    clock.advance(Duration::from_secs(100));
    assert_ready(&handle.wait(LONG));
    assert_eq!(stack.counters().overlap(), seconds(20, 9));
    assert_eq!(stack.counters().overlap().hidden(), Some(1.0 - 9.0 / 20.0));
    assert_eq!(stack.counters().tier(TierName::DISK).bytes_read, 12 * 24);
}

/// Many threads submit, replace, cancel and wait while blocks fail: every handle ends, and nothing stays
/// pending.
#[test]
fn every_handle_ends_under_load() {
    let config = EngineConfig::GSA.max_pending_prefetch(6).prefetch_cache_size(16);
    let tier = Arc::new(FakeTier::new(TierName::DISK, layout(), Duration::from_micros(50)));
    (0..60u8).step_by(7).for_each(|n| tier.fail(hash(n), Fault::Broken));
    tier.fail(hash(31), Fault::Panics);
    let stack = Arc::new(TierStack::new(vec![tier]).unwrap());
    let engine = Engine::new(stack, config).unwrap();
    let ended: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u8)
            .map(|thread| {
                let engine = &engine;
                scope.spawn(move || {
                    let mut handles = Vec::new();
                    for i in 0..150u8 {
                        let key = TaskKey { seq: SeqId::new(u64::from(i % 5)), generation: u64::from(i) };
                        let first = (i ^ (thread * 37)) % 50;
                        let submission =
                            task(0, first..first + 5).key(key).priority(Priority::ALL[usize::from(i % 4)]);
                        handles.extend(engine.submit(submission));
                        match i % 11 {
                            3 => drop(engine.cancel(SeqId::new(u64::from(i % 3)))),
                            7 => handles.last().into_iter().for_each(|handle| handle.cancel()),
                            _ => {}
                        }
                    }
                    let waits = handles.into_iter().map(pollster::block_on);
                    waits.inspect(|outcome| assert!(!matches!(outcome, TaskOutcome::Timeout))).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(ended > 0);
    assert_eq!(engine.pending(), 0);
    assert!(engine.cached_blocks() <= 16);
}
