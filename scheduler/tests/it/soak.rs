//! A long day: random arrivals, cancels, samples and loads over a pool that is always too small. Nothing leaks, nothing
//! deadlocks, and no request waits for ever.
//!
//! `PAGODA_LONG_TESTS=1` runs 10^6 steps of each configuration instead of 50,000.

use std::collections::HashMap;

use crate::support::{cache_config, check_conservation};
use kvblock::{AttentionKind, SeqId};
use scheduler::{Load, Policy, Preemption, Request, Scheduler, SchedulerConfig};

/// Requests that are there at a time: the load is always higher than what can run.
const QUEUE: usize = 40;
/// Number of these requests with the highest priority: enough to occupy every slot.
const URGENT: usize = 16;
const MAX_SEQS: u32 = 8;
const HOST_BLOCKS: u32 = 30;
/// Steps within which a request must finish; several times what any took.
const PATIENCE: u64 = 4_000;

/// xorshift64*: the same day in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        u32::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap() % end
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

struct Day {
    scheduler: Scheduler,
    rng: Rng,
    step: u64,
    /// Step of arrival and priority of every sequence that has not ended.
    arrived: HashMap<SeqId, (u64, i32)>,
    loads: Vec<Load>,
    finished: u64,
    longest: u64,
}

impl Day {
    fn new(policy: Policy, preemption: Preemption, kinds: &[(AttentionKind, u32)]) -> Self {
        let config = SchedulerConfig::new(32, MAX_SEQS).policy(policy).preemption(preemption);
        let scheduler =
            Scheduler::new(config, cache_config(20 + 16 * u32::try_from(kinds.len()).unwrap(), 96, kinds))
                .unwrap();
        let rng = Rng(0x9e37_79b9_7f4a_7c15);
        Self { scheduler, rng, step: 0, arrived: HashMap::new(), loads: Vec::new(), finished: 0, longest: 0 }
    }

    fn arrive(&mut self, priority: i32) {
        let rng = &mut self.rng;
        // A third begins with one of four prompts that others have too.
        let shared = if rng.one_in(3) { rng.below(32) } else { 0 };
        let family = 1_000 * rng.below(4);
        let mut prompt: Vec<u32> = (family..family + shared).collect();
        prompt.extend((0..1 + rng.below(40)).map(|_| rng.below(1_000_000)));
        let request = Request::new(prompt, 1 + rng.below(24))
            .num_samples(if rng.one_in(8) { 1 + rng.below(3) } else { 1 })
            .priority(priority)
            .external_tokens(if rng.one_in(10) { rng.below(30) } else { 0 });
        let samples = u64::from(request.num_samples);
        let first = self.scheduler.add(request).expect("one request alone fits");
        self.arrived.extend((0..samples).map(|i| (SeqId::new(first.get() + i), (self.step, priority))));
    }

    fn cancel(&mut self) {
        let Some(oldest) = self.arrived.keys().copied().min() else { return };
        let seq = SeqId::new(oldest.get() + u64::from(self.rng.below(60)));
        self.loads.retain(|load| load.seq != seq);
        for ended in self.scheduler.abort(seq) {
            self.arrived.remove(&ended.seq).expect("a sequence ends once");
        }
    }

    fn deliver(&mut self) {
        if !self.loads.is_empty() {
            let load = self.loads.swap_remove(0);
            let arrived = if self.rng.one_in(4) { self.rng.below(load.len + 1) } else { load.len };
            self.scheduler.remote_ready(load.seq, arrived);
        }
    }

    fn step(&mut self) {
        let plan = self.scheduler.step();
        self.loads.extend(&plan.loads);
        if self.rng.one_in(50) {
            self.cancel(); // While the step is in flight.
        }
        let sampled: Vec<u32> = plan.sample_rows.iter().map(|_| self.rng.below(1_000_000)).collect();
        for ended in self.scheduler.complete(&plan, &sampled) {
            let (arrived, _) = self.arrived.remove(&ended.seq).expect("a sequence ends once");
            self.longest = self.longest.max(self.step - arrived);
            self.finished += 1;
        }
        let pool = self.scheduler.cache().pool();
        assert_eq!(pool.num_free() + pool.num_used(), pool.num_usable());
        if self.step.is_multiple_of(97) {
            check_conservation(&self.scheduler);
        }
        self.step += 1;
    }

    /// Runs `steps` steps; stops early at the first request that waited longer than [`PATIENCE`].
    fn run(&mut self, steps: u64) {
        while self.step < steps && self.waited() <= PATIENCE {
            if self.arrived.values().filter(|(_, priority)| *priority == 0).count() < URGENT {
                self.arrive(0);
            } else if self.arrived.len() < QUEUE && !self.rng.one_in(3) {
                let priority = 1 + i32::try_from(self.rng.below(3)).unwrap();
                self.arrive(priority);
            }
            if self.rng.one_in(40) {
                self.cancel();
            }
            if self.rng.one_in(3) {
                self.deliver();
            }
            self.step();
        }
    }

    /// Steps that the request that is there longest has been there.
    fn waited(&self) -> u64 {
        if !self.step.is_multiple_of(64) {
            return 0;
        }
        self.arrived.values().min().map_or(0, |(arrived, _)| self.step - arrived)
    }

    /// Lets everything that was admitted finish, and checks that nothing is left behind.
    fn close(mut self, name: &str) {
        let closing = self.step;
        while self.scheduler.has_work() {
            assert!(self.step - closing < PATIENCE, "{name}: {} sequences do not end", self.arrived.len());
            self.deliver();
            self.step();
        }
        assert!(self.arrived.is_empty(), "{name}: {:?}", self.arrived);
        assert_eq!(self.scheduler.cache().pool().num_used(), 0, "{name}");
        assert!(matches!(self.scheduler.num_free_host_blocks(), 0 | 30), "{name}: host blocks leaked");
        assert!(self.scheduler.cache_mut().reset_prefix_cache(), "{name}");
        let (steps, preemptions) = (self.step, self.scheduler.num_preemptions());
        eprintln!(
            "{name}: {steps} steps, {} finished, {preemptions} preemptions, longest {}",
            self.finished, self.longest
        );
        assert!(preemptions > steps / 50, "{name}: the pool was large enough");
        assert!(self.finished > steps / 10, "{name}: {} of {steps} steps finished a sequence", self.finished);
        assert!(self.longest <= PATIENCE, "{name}: a request took {} steps", self.longest);
    }
}

const KINDS: [(AttentionKind, u32); 1] = [(AttentionKind::FULL, 4)];
const SWAP: Preemption = Preemption::Swap { num_host_blocks: HOST_BLOCKS };

fn steps() -> u64 {
    if std::env::var_os("PAGODA_LONG_TESTS").is_some() { 1_000_000 } else { 50_000 }
}

fn soak(name: &str, policy: Policy, preemption: Preemption, kinds: &[(AttentionKind, u32)]) {
    let mut day = Day::new(policy, preemption, kinds);
    day.run(steps());
    assert_eq!(day.step, steps(), "{name}: a request has waited {} steps", day.waited());
    day.close(name);
}

#[test]
fn first_come_first_served() {
    soak("fcfs, recompute", Policy::Fcfs, Preemption::Recompute, &KINDS);
}

#[test]
fn first_come_first_served_with_swaps() {
    soak("fcfs, swap", Policy::Fcfs, SWAP, &KINDS);
}

#[test]
fn priority_with_ageing() {
    soak("priority, ageing", Policy::Priority { ageing_steps: 50 }, Preemption::Recompute, &KINDS);
}

#[test]
fn priority_with_ageing_swaps_and_a_window() {
    let kinds = [(AttentionKind::FULL, 4), (AttentionKind::SlidingWindow { window: 12 }, 4)];
    soak("priority, ageing, swap, window", Policy::Priority { ageing_steps: 50 }, SWAP, &kinds);
}

/// Counterexample of the other tests: a request that starves.
#[test]
fn priority_without_ageing_lets_a_request_wait_for_ever() {
    let mut day = Day::new(Policy::Priority { ageing_steps: 0 }, Preemption::Recompute, &KINDS);
    day.run(10_000);
    assert!(day.waited() > PATIENCE, "every request got its turn");
}
