//! The cost of a step does not depend on how many requests wait, as counted in looks at places of the queue.

use std::cell::Cell;

use kvblock::{AttentionKind, BlockSize, KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits, SeqId};

use crate::{Policy, Request, Scheduler, SchedulerConfig};

thread_local! {
    /// Number of comparisons of places, and of places that an iterator went through.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

pub(super) fn count_look() {
    LOOKS.set(LOOKS.get() + 1);
}

const FEW: u32 = 100;
/// The square of [`FEW`] and more, so that a search in a tree takes at most three times as many looks.
const MANY: u32 = 100_000;
const STEPS: u32 = 60;

/// Largest numbers of looks of a call, over the steps of a run.
#[derive(Default, Debug)]
struct Looks {
    step: u32,
    complete: u32,
    requests: u32,
    abort: u32,
    add: u32,
}

fn counted<T>(most: &mut u32, call: impl FnOnce() -> T) -> T {
    LOOKS.set(0);
    let result = call();
    *most = LOOKS.get().max(*most);
    result
}

fn scheduler(policy: Policy) -> Scheduler {
    let spec = KvCacheSpec::new(AttentionKind::FULL, BlockSize::new(4).unwrap(), 1, 4, KvDtype::F16);
    let cache = KvCacheConfig::uniform(64, spec, 1, LengthLimits::new(96));
    Scheduler::new(SchedulerConfig::new(8, 4).policy(policy), cache).unwrap()
}

/// Runs steps in each of which requests end, start, come, and are aborted.
fn looks(policy: Policy, num_waiting: u32) -> Looks {
    let mut scheduler = scheduler(policy);
    let request = |n: u32| Request::new(vec![n, 1, 2, 3, 4], 2).priority(1);
    let mut last = SeqId::new(0);
    for n in 0..num_waiting {
        last = scheduler.add(request(n)).unwrap();
    }
    let mut looks = Looks::default();
    for n in 0..STEPS {
        let requests = counted(&mut looks.requests, || scheduler.prefetch_requests(2));
        assert!(!requests.is_empty() && requests.len() < 20);
        let plan = counted(&mut looks.step, || scheduler.step());
        let sampled = vec![7; plan.sample_rows.len()];
        counted(&mut looks.complete, || scheduler.complete(&plan, &sampled));
        let aborted =
            counted(&mut looks.abort, || [last, SeqId::new(1 << 40)].map(|seq| scheduler.abort(seq).len()));
        assert_eq!(aborted, [1, 0]);
        for _ in 0..3 {
            last = counted(&mut looks.add, || scheduler.add(request(num_waiting + n)).unwrap());
        }
    }
    looks
}

#[test]
fn a_step_costs_the_same_whoever_waits() {
    for policy in [Policy::Fcfs, Policy::Priority { ageing_steps: 50 }] {
        let (few, many) = (looks(policy, FEW), looks(policy, MANY));
        for (few, many) in [
            (few.step, many.step),
            (few.complete, many.complete),
            (few.requests, many.requests),
            (few.abort, many.abort),
            (few.add, many.add),
        ] {
            assert!(many <= 3 * few, "{policy:?}: {many} looks, with few waiting {few}");
        }
        assert!(few.step > 0 && few.abort > 0 && few.add > 0, "{few:?}");
    }
}
