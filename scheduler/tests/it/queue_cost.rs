//! The cost of a step does not depend on how many requests wait.

use std::time::{Duration, Instant};

use crate::support::cache_config;
use kvblock::{AttentionKind, SeqId};
use scheduler::{Policy, Request, Scheduler, SchedulerConfig};

/// Requests of the long queue. What looked at each of them took milliseconds a step.
const MANY: u32 = 100_000;
const FEW: u32 = 100;
/// Factor that noise and the depth of a tree may cost; a look at each request costs a factor of 1,000.
const SLACK: u32 = 25;
const STEPS: u32 = 60;

/// Least times of a call, over the steps of a run.
#[derive(Debug)]
struct Costs {
    step: Duration,
    complete: Duration,
    requests: Duration,
    abort: Duration,
    add: Duration,
}

fn least(time: &mut Duration, begin: Instant) {
    *time = begin.elapsed().min(*time);
}

/// Runs steps in each of which two requests end and two start.
fn costs(policy: Policy, num_waiting: u32) -> Costs {
    let config = SchedulerConfig::new(8, 4).policy(policy);
    let cache = cache_config(64, 96, &[(AttentionKind::FULL, 4)]);
    let mut scheduler = Scheduler::new(config, cache).unwrap();
    let request = |n: u32| Request::new(vec![n, 1, 2, 3, 4], 2).priority(1);
    for n in 0..num_waiting {
        scheduler.add(request(n)).unwrap();
    }
    let most = Duration::MAX;
    let mut costs = Costs { step: most, complete: most, requests: most, abort: most, add: most };
    for n in 0..STEPS {
        let begin = Instant::now();
        let requests = scheduler.prefetch_requests(2);
        least(&mut costs.requests, begin);
        assert!(!requests.is_empty() && requests.len() < 20);
        let begin = Instant::now();
        let plan = scheduler.step();
        least(&mut costs.step, begin);
        let begin = Instant::now();
        let ended = scheduler.complete(&plan, &vec![7; plan.sample_rows.len()]);
        if !ended.is_empty() {
            least(&mut costs.complete, begin);
        }
        let last = scheduler.waiting().last().expect("more wait than run");
        let begin = Instant::now();
        assert_eq!(scheduler.abort(last).len(), 1);
        assert!(scheduler.abort(SeqId::new(1 << 40)).is_empty());
        least(&mut costs.abort, begin);
        let begin = Instant::now();
        (0..3).for_each(|_| assert!(scheduler.add(request(num_waiting + n)).is_ok()));
        least(&mut costs.add, begin);
    }
    costs
}

#[test]
fn a_step_costs_the_same_whoever_waits() {
    for policy in [Policy::Fcfs, Policy::Priority { ageing_steps: 50 }] {
        let (few, many) = (costs(policy, FEW), costs(policy, MANY));
        eprintln!("{policy:?}: {few:?} with {FEW} waiting, {many:?} with {MANY}");
        for (few, many) in [
            (few.step, many.step),
            (few.complete, many.complete),
            (few.requests, many.requests),
            (few.abort, many.abort),
            (few.add, many.add),
        ] {
            assert!(many < few * SLACK + Duration::from_micros(20), "{many:?}, with few waiting {few:?}");
        }
    }
}
