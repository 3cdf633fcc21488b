//! The engine's state machine on virtual time, against a naive model.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use kvblock::{BlockHash, SeqId};
use prefetch::engine::{EngineConfig, Loaded, Submission, SubmitError, TaskBoard, TaskKey, TaskOutcome};
use prefetch::plan::Priority;
use prefetch::tier::{TierError, TierName};
use proptest::prelude::*;

use super::{hash, hashes};

const SMALL: EngineConfig = {
    let mut config = EngineConfig::GSA;
    config.prefetch_workers = 2;
    config.max_pending_prefetch = 3;
    config.prefetch_cache_size = 6;
    config
};

fn task(seq: u64, generation: u64, priority: Priority, blocks: &[u8]) -> Submission {
    let key = TaskKey { seq: SeqId::new(seq), generation };
    Submission::new(key, priority, hashes(blocks.iter().copied()))
}

fn loaded() -> Result<Loaded, Arc<TierError>> {
    Ok(Loaded { bytes: Arc::from([0]), tier: TierName::DISK })
}

fn missing(key: BlockHash) -> Result<Loaded, Arc<TierError>> {
    Err(Arc::new(TierError::NotFound { tier: TierName::DISK, key }))
}

fn outcome(outcome: &TaskOutcome) -> String {
    match outcome {
        TaskOutcome::Ready { loaded, cached } => format!("ready, {loaded} loaded, {cached} cached"),
        TaskOutcome::Failed(bad) => {
            let bad: Vec<_> = bad.iter().map(|b| format!("{}={:?}", b.position, b.block)).collect();
            format!("failed at {}", bad.join(" "))
        }
        TaskOutcome::Cancelled => "cancelled".into(),
        other => panic!("a board has no {other:?}"),
    }
}

/// Runs a board with workers that take `latency_ms(block)`, until it is idle; one line an event.
fn simulate(board: &mut TaskBoard, latency_ms: impl Fn(BlockHash) -> u64, broken: &[BlockHash]) -> String {
    let mut trace = String::new();
    let mut in_flight: BTreeMap<(u64, usize), BlockHash> = BTreeMap::new();
    let mut idle: Vec<usize> = (0..SMALL.prefetch_workers).rev().collect();
    let mut now = 0;
    loop {
        while let Some(worker) = idle.pop() {
            let Some(block) = board.next_load(Duration::from_millis(now)) else {
                idle.push(worker);
                break;
            };
            writeln!(trace, "{now:>3} ms  worker {worker} loads {block:?}").unwrap();
            in_flight.insert((now + latency_ms(block), worker), block);
        }
        for settled in board.take_settled() {
            let key = settled.key;
            let text = outcome(&settled.outcome);
            writeln!(trace, "{now:>3} ms  {:?}.{} {text}, {:?}", key.seq, key.generation, settled.transfer)
                .unwrap();
        }
        let Some(((time, worker), block)) = in_flight.pop_first() else { return trace };
        now = time;
        let result = if broken.contains(&block) { missing(block) } else { loaded() };
        board.finish(block, result, Duration::from_millis(now));
        idle.push(worker);
    }
}

#[test]
fn urgent_work_overtakes_between_blocks_and_shared_blocks_load_once() {
    let mut board = TaskBoard::new(SMALL);
    board.submit(task(1, 0, Priority::Low, &[1, 2, 3])).unwrap();
    board.submit(task(2, 0, Priority::Normal, &[3, 4])).unwrap();
    board.submit(task(3, 0, Priority::Urgent, &[4, 5])).unwrap();
    assert_snapshot!(simulate(&mut board, |block| 10 + u64::from(block.as_bytes()[0]), &[]), @r"
     0 ms  worker 0 loads h04000000
     0 ms  worker 1 loads h05000000
    14 ms  worker 0 loads h03000000
    15 ms  worker 1 loads h01000000
    15 ms  q3.0 ready, 2 loaded, 0 cached, 15ms
    26 ms  worker 1 loads h02000000
    27 ms  q2.0 ready, 1 loaded, 1 cached, 13ms
    38 ms  q1.0 ready, 2 loaded, 1 cached, 23ms
    ");
}

#[test]
fn a_failed_block_fails_its_task_after_the_others_were_loaded() {
    let mut board = TaskBoard::new(SMALL);
    board.submit(task(1, 0, Priority::High, &[1, 2, 3])).unwrap();
    board.submit(task(2, 0, Priority::High, &[3, 4])).unwrap();
    assert_snapshot!(simulate(&mut board, |_| 10, &hashes([2])), @r"
     0 ms  worker 0 loads h01000000
     0 ms  worker 1 loads h02000000
    10 ms  worker 0 loads h03000000
    10 ms  worker 1 loads h04000000
    20 ms  q1.0 failed at 1=h02000000, 20ms
    20 ms  q2.0 ready, 2 loaded, 0 cached, 10ms
    ");
    assert_eq!(board.cached_blocks(), 3);
}

#[test]
fn a_newer_generation_replaces_the_older_and_its_block_in_flight_is_discarded() {
    let mut board = TaskBoard::new(SMALL);
    board.submit(task(1, 4, Priority::High, &[1, 2])).unwrap();
    assert_eq!(board.next_load(Duration::ZERO), Some(hash(1)));
    assert_eq!(
        board.submit(task(1, 4, Priority::High, &[9])),
        Err(SubmitError::Stale { key: TaskKey { seq: SeqId::new(1), generation: 4 }, live: 4 })
    );
    board.submit(task(1, 5, Priority::High, &[3])).unwrap();
    board.finish(hash(1), loaded(), Duration::ZERO);
    assert_eq!(board.cached_blocks(), 0);
    assert_snapshot!(simulate(&mut board, |_| 10, &[]), @r"
     0 ms  worker 0 loads h03000000
     0 ms  q1.4 cancelled, 0ns
    10 ms  q1.5 ready, 1 loaded, 0 cached, 10ms
    ");
}

#[test]
fn a_key_used_again_does_not_take_the_loads_of_its_first_use() {
    let mut board = TaskBoard::new(SMALL);
    board.submit(task(1, 1, Priority::High, &[7])).unwrap();
    let block = board.next_load(Duration::ZERO).unwrap();
    assert!(board.cancel(SeqId::new(1)));
    board.submit(task(1, 1, Priority::High, &[7])).unwrap();
    // It waits for the load in flight instead of starting one.
    assert_eq!(board.next_load(Duration::ZERO), None);
    board.finish(block, loaded(), Duration::ZERO);
    let outcomes: Vec<String> =
        board.take_settled().iter().map(|settled| outcome(&settled.outcome)).collect();
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    assert!(outcomes[0].contains("cancelled") && outcomes[1].contains("ready"), "{outcomes:?}");
}

#[test]
fn a_full_board_drops_the_youngest_low_task_for_urgent_work_only() {
    let mut board = TaskBoard::new(SMALL);
    board.submit(task(1, 0, Priority::Low, &[1])).unwrap();
    board.submit(task(2, 0, Priority::Low, &[2])).unwrap();
    board.submit(task(3, 0, Priority::Normal, &[3])).unwrap();
    let full = Err(SubmitError::QueueFull { pending_max: 3 });
    assert_eq!(board.submit(task(4, 0, Priority::Low, &[4])), full);
    board.submit(task(5, 0, Priority::High, &[5])).unwrap();
    board.submit(task(6, 0, Priority::Normal, &[6])).unwrap();
    assert_eq!(board.submit(task(7, 0, Priority::Urgent, &[7])), full, "only LOW work is dropped");
    assert_snapshot!(simulate(&mut board, |_| 10, &[]), @r"
     0 ms  worker 0 loads h05000000
     0 ms  worker 1 loads h03000000
     0 ms  q2.0 cancelled, 0ns
     0 ms  q1.0 cancelled, 0ns
    10 ms  worker 0 loads h06000000
    10 ms  q5.0 ready, 1 loaded, 0 cached, 10ms
    10 ms  q3.0 ready, 1 loaded, 0 cached, 10ms
    20 ms  q6.0 ready, 1 loaded, 0 cached, 10ms
    ");
}

#[test]
fn limits_are_named_in_the_error() {
    let mut board = TaskBoard::new(SMALL);
    board.advance(10);
    let ahead = task(1, 0, Priority::High, &[1]).step(13);
    assert_snapshot!(board.submit(ahead).unwrap_err(), @"step 13 is too far ahead, the latest that may be prefetched for is 12");
    assert_snapshot!(board.submit(task(1, 0, Priority::High, &[0, 1, 2, 3, 4, 5, 6])).unwrap_err(), @"task of 7 blocks where the cache holds 6");
    let last = task(1, 0, Priority::High, &[1, 1, 1]).step(12);
    board.submit(last).unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Submit { seq: u64, priority: Priority, blocks: Vec<u8> },
    Next,
    Finish { pick: usize, ok: bool },
    Cancel { seq: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u64..5, prop::sample::select(&Priority::ALL), prop::collection::vec(0u8..10, 0..5))
            .prop_map(|(seq, priority, blocks)| Op::Submit { seq, priority, blocks }),
        6 => Just(Op::Next),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(pick, ok)| Op::Finish { pick, ok }),
        1 => (0u64..5).prop_map(|seq| Op::Cancel { seq }),
    ]
}

/// Tasks in one list; the next block is found by sorting it.
#[derive(Default)]
struct Model {
    /// (key, priority, blocks not yet looked up, blocks it waits for)
    tasks: Vec<(TaskKey, Priority, Vec<BlockHash>, HashSet<BlockHash>)>,
    in_flight: HashSet<BlockHash>,
    /// Least recently used first.
    cache: Vec<BlockHash>,
}

impl Model {
    fn next(&mut self) -> Option<BlockHash> {
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        order.sort_by_key(|&i| self.tasks[i].1);
        for i in order {
            while !self.tasks[i].2.is_empty() {
                let block = self.tasks[i].2.remove(0);
                if let Some(at) = self.cache.iter().position(|&b| b == block) {
                    self.cache.remove(at);
                    self.cache.push(block);
                    continue;
                }
                self.tasks[i].3.insert(block);
                if self.in_flight.insert(block) {
                    return Some(block);
                }
            }
        }
        None
    }

    fn finish(&mut self, block: BlockHash, ok: bool) {
        self.in_flight.remove(&block);
        let wanted = self.tasks.iter_mut().fold(false, |any, task| any | task.3.remove(&block));
        if ok && wanted {
            self.cache.push(block);
            if self.cache.len() > SMALL.prefetch_cache_size {
                self.cache.remove(0);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_board_follows_the_model(ops in prop::collection::vec(op(), 0..80)) {
        let mut board = TaskBoard::new(SMALL);
        let mut model = Model::default();
        let mut settled: HashMap<TaskKey, u32> = HashMap::new();
        let mut accepted = 0;
        for (generation, op) in (0..).zip(ops.into_iter().chain(std::iter::repeat_n(Op::Next, 40))) {
            match op {
                Op::Submit { seq, priority, blocks } => {
                    let submission = task(seq, generation, priority, &blocks);
                    let (key, mut blocks) = (submission.key, submission.blocks.clone());
                    if board.submit(submission).is_ok() {
                        accepted += 1;
                        model.tasks.retain(|task| task.0.seq != key.seq);
                        let mut seen = HashSet::new();
                        blocks.retain(|block| seen.insert(*block));
                        model.tasks.push((key, priority, blocks, HashSet::new()));
                    } else {
                        prop_assert_eq!(board.pending(), SMALL.max_pending_prefetch);
                    }
                }
                Op::Next => prop_assert_eq!(board.next_load(Duration::ZERO), model.next()),
                Op::Finish { pick, ok } => {
                    let mut flying: Vec<_> = model.in_flight.iter().copied().collect();
                    flying.sort_unstable();
                    if let Some(&block) = flying.get(pick % flying.len().max(1)) {
                        board.finish(block, if ok { loaded() } else { missing(block) }, Duration::ZERO);
                        model.finish(block, ok);
                    }
                }
                Op::Cancel { seq } => {
                    board.cancel(SeqId::new(seq));
                    model.tasks.retain(|task| task.0.seq.get() != seq);
                }
            }
            for done in board.take_settled() {
                *settled.entry(done.key).or_default() += 1;
                if !matches!(done.outcome, TaskOutcome::Cancelled) {
                    let task = model.tasks.iter().find(|task| task.0 == done.key).unwrap();
                    prop_assert!(task.2.is_empty() && task.3.is_empty(), "settled with work left");
                }
                model.tasks.retain(|task| task.0 != done.key);
            }
            prop_assert!(board.pending() <= SMALL.max_pending_prefetch);
            prop_assert_eq!(board.cached_blocks(), model.cache.len());
        }
        for block in model.in_flight.clone() {
            board.finish(block, loaded(), Duration::ZERO);
        }
        for done in board.take_settled() {
            *settled.entry(done.key).or_default() += 1;
        }
        prop_assert_eq!(board.pending(), 0);
        prop_assert_eq!(settled.len(), accepted, "every accepted task ends");
        prop_assert!(settled.values().all(|&times| times == 1), "and ends once");
    }
}
