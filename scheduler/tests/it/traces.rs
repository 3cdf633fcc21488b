//! Timelines of plans: a row a sequence, a column a step.
//!
//! `P8` computes 8 prefill tokens, `D1` decodes, `+4` found 4 tokens in the prefix cache (or brought them
//! back), `x` was preempted, `L` waits for a load, `.` waits, `$` ended with this step.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::support::{Memory, cache_config, checked_step};
use kvblock::{AttentionKind, KvCacheConfig, SeqId};
use scheduler::{
    BlockOp, Ending, Phase, Policy, Preemption, Request, Scheduler, SchedulerConfig, Status, StepPlan,
};

const FULL: [(AttentionKind, u32); 1] = [(AttentionKind::FULL, 4)];

struct Trace {
    scheduler: Scheduler,
    memory: Memory,
    kinds: Vec<(AttentionKind, u32)>,
    limits: (u32, u32),
    rows: BTreeMap<SeqId, Vec<String>>,
    copies: Vec<String>,
    steps: usize,
}

impl Trace {
    fn new(config: SchedulerConfig, num_blocks: u32, kinds: &[(AttentionKind, u32)]) -> Self {
        Self::over(config, cache_config(num_blocks, 64, kinds), kinds)
    }

    fn over(config: SchedulerConfig, cache: KvCacheConfig, kinds: &[(AttentionKind, u32)]) -> Self {
        Self {
            scheduler: Scheduler::new(config, cache).unwrap(),
            memory: Memory::default(),
            kinds: kinds.to_vec(),
            limits: (config.max_num_batched_tokens, config.max_num_seqs),
            rows: BTreeMap::new(),
            copies: Vec::new(),
            steps: 0,
        }
    }

    /// A prompt of `len` tokens of its own, behind `shared` tokens that all prompts have.
    fn add(&mut self, shared: u32, len: u32, max_tokens: u32) -> SeqId {
        let own = 100 * (1 + u32::try_from(self.rows.len()).unwrap());
        self.request(Request::new((0..shared).chain(own..own + len).collect(), max_tokens))
    }

    fn request(&mut self, request: Request) -> SeqId {
        let samples = u64::from(request.num_samples);
        let first = self.scheduler.add(request).unwrap();
        for seq in (0..samples).map(|i| SeqId::new(first.get() + i)) {
            self.rows.insert(seq, vec![String::new(); self.steps]);
        }
        first
    }

    fn step(&mut self) -> StepPlan {
        let (plan, finished) = checked_step(&mut self.scheduler, &mut self.memory, &self.kinds, self.limits);
        for (&seq, row) in &mut self.rows {
            let mut cell = String::new();
            if let Some(admitted) =
                plan.admitted.iter().find(|admitted| admitted.seq == seq && admitted.cached_tokens > 0)
            {
                write!(cell, "+{}", admitted.cached_tokens).unwrap();
            }
            if let Some(slice) = plan.slices.iter().find(|slice| slice.seq == seq) {
                let role = if slice.phase == Phase::Decode { 'D' } else { 'P' };
                write!(cell, "{role}{}", slice.len).unwrap();
            }
            let mark = match self.scheduler.status(seq) {
                _ if plan.preempted.contains(&seq) => "x",
                _ if finished.iter().any(|finished| finished.seq == seq) => "$",
                Some(Status::WaitingForRemoteKv) => "L",
                Some(_) if cell.is_empty() => ".",
                _ => "",
            };
            row.push(cell + mark);
        }
        for op in &plan.block_ops {
            self.copies.push(match *op {
                BlockOp::Copy(copy) => format!("{}: {:?} to {:?}", self.steps, copy.source, copy.destination),
                BlockOp::SwapOut { device, host, .. } => format!("{}: {device:?} to {host:?}", self.steps),
                BlockOp::SwapIn { device, host, .. } => format!("{}: {host:?} to {device:?}", self.steps),
                ref other => panic!("unknown {other:?}"),
            });
        }
        self.steps += 1;
        plan
    }

    fn finish(mut self) -> String {
        while self.scheduler.has_work() {
            assert!(self.steps < 60, "no end in sight:\n{}", self.draw());
            self.step();
        }
        self.draw()
    }

    fn draw(&self) -> String {
        let width = |step: usize| self.rows.values().map(|row| row[step].len()).max().unwrap_or(0);
        let mut out = String::new();
        for (seq, row) in &self.rows {
            write!(out, "{seq:?} |").unwrap();
            for (step, cell) in row.iter().enumerate() {
                write!(out, "{cell:<width$}|", width = width(step)).unwrap();
            }
            writeln!(out).unwrap();
        }
        for copy in &self.copies {
            writeln!(out, "{copy}").unwrap();
        }
        out
    }
}

#[test]
fn decodes_come_first_and_prefills_share_the_rest() {
    let mut trace = Trace::new(SchedulerConfig::new(8, 4), 50, &FULL);
    trace.add(0, 6, 4);
    trace.add(0, 13, 3);
    trace.step();
    trace.step();
    trace.add(0, 3, 2);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P6|D1|D1|D1$|   |
    q1 |P2|P7|P4|D1 |D1$|
    q2 |  |  |P3|D1$|   |
    ");
}

#[test]
fn a_threshold_keeps_room_for_short_prompts() {
    let config = SchedulerConfig::new(8, 4).long_prefill_token_threshold(5);
    let mut trace = Trace::new(config, 50, &FULL);
    trace.add(0, 17, 2);
    trace.add(0, 3, 2);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P5|P5 |P5|P2|D1$|
    q1 |P3|D1$|  |  |   |
    ");
}

#[test]
fn without_chunks_a_prompt_waits_for_a_whole_budget() {
    let config = SchedulerConfig::new(64, 4).chunked_prefill(false);
    let mut trace = Trace::new(config, 50, &FULL);
    trace.add(0, 40, 2);
    trace.add(0, 30, 2);
    trace.add(0, 10, 2);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P40|D1$|   |
    q1 |.  |P30|D1$|
    q2 |.  |P10|D1$|
    ");
}

#[test]
fn equal_prefixes_are_computed_once() {
    let mut trace = Trace::new(SchedulerConfig::new(16, 4), 50, &FULL);
    trace.add(9, 3, 2);
    trace.add(9, 4, 2);
    trace.step();
    trace.add(9, 1, 2);
    trace.step();
    let stats = trace.scheduler.prefix_stats().total();
    assert_eq!((stats.requests, stats.queried_tokens, stats.hit_tokens), (3, 12 + 13 + 10, 8 + 8));
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P12 |D1$ |   |
    q1 |+8P4|P1  |D1$|
    q2 |    |+8P2|D1$|
    ");
}

#[test]
fn the_latest_sequence_is_preempted_and_recomputed() {
    let mut trace = Trace::new(SchedulerConfig::new(16, 4), 6, &FULL);
    trace.add(0, 7, 6);
    trace.add(0, 7, 6);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P7|D1|D1|D1|D1|D1$|    |  |  |   |
    q1 |P7|D1|x |. |. |.  |+8P1|D1|D1|D1$|
    ");
}

#[test]
fn the_latest_sequence_is_swapped_out_and_back() {
    let preemption = Preemption::Swap { num_host_blocks: 4 };
    let mut trace = Trace::new(SchedulerConfig::new(16, 4).preemption(preemption), 6, &FULL);
    trace.add(0, 7, 6);
    trace.add(0, 7, 6);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P7|D1|D1|D1|D1|D1$|    |  |  |   |
    q1 |P7|D1|x |. |. |.  |+8D1|D1|D1|D1$|
    2: b3 to host0
    2: b4 to host1
    6: host0 to b4
    6: host1 to b3
    ");
}

#[test]
fn a_failed_swap_in_leaves_nothing_to_find() {
    let preemption = Preemption::Swap { num_host_blocks: 4 };
    let mut trace = Trace::new(SchedulerConfig::new(16, 4).preemption(preemption), 6, &FULL);
    trace.add(0, 7, 6);
    let victim = trace.add(0, 7, 6);
    let prompt = trace.scheduler.tokens(victim).unwrap().to_vec();
    let plan = loop {
        let plan = trace.scheduler.step();
        if plan.block_ops.iter().any(|op| matches!(op, BlockOp::SwapIn { .. })) {
            break plan;
        }
        let verified = trace.memory.run(&trace.scheduler, &FULL, &plan);
        trace.scheduler.complete_drafts(&plan, &verified.iter().map(Vec::as_slice).collect::<Vec<_>>());
    };
    let failed = trace.scheduler.fail_step(&plan);
    assert_eq!((failed[0].seq, failed[0].reason), (victim, Ending::Failed));
    let again = trace.request(Request::new(prompt, 1));
    assert_eq!(trace.step().slices[0].start, 0);
    assert_eq!(trace.scheduler.status(again), None);
}

#[test]
fn the_least_important_sequence_is_preempted() {
    let config = SchedulerConfig::new(16, 4).policy(Policy::Priority { ageing_steps: 0 });
    let mut trace = Trace::new(config, 8, &FULL);
    for priority in [5, 1, 2] {
        let start = u32::try_from(priority).unwrap() * 20;
        trace.request(Request::new((start..start + 6).collect(), 6).priority(priority));
        if priority == 5 {
            trace.step();
        }
    }
    // The victim comes before the others in the order of service; both of them still decode in that step.
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P6|D1|D1|D1|x |. |.  |+4P6|D1$|
    q1 |  |P6|D1|D1|D1|D1|D1$|    |   |
    q2 |  |P6|D1|D1|D1|D1|D1$|    |   |
    ");
}

/// Two important requests at a time, one seat, and one request that nobody needs soon.
fn stream_of_important_requests(ageing_steps: u32) -> String {
    let policy = Policy::Priority { ageing_steps };
    let mut trace = Trace::new(SchedulerConfig::new(16, 1).policy(policy), 20, &FULL);
    let late = trace.request(Request::new((0..3).collect(), 2).priority(2));
    while trace.scheduler.status(late).is_some() && trace.steps < 12 {
        while trace.scheduler.running().len() + trace.scheduler.waiting().count() < 3 {
            trace.add(0, 2, 2);
        }
        trace.step();
    }
    trace.draw().lines().next().unwrap().to_owned()
}

#[test]
fn age_makes_up_for_priority() {
    // Two levels are 2 x 3 steps: only who came before step 6 goes first.
    insta::assert_snapshot!(stream_of_important_requests(3), @"q0 |. |.  |. |.  |. |.  |. |.  |P3|D1$|");
    insta::assert_snapshot!(stream_of_important_requests(0), @"q0 |. |.  |. |.  |. |.  |. |.  |. |.  |. |.  |");
}

#[test]
fn a_swap_saves_only_what_a_window_reaches() {
    let preemption = Preemption::Swap { num_host_blocks: 12 };
    let kinds =
        [(AttentionKind::FULL, 2), (AttentionKind::FULL, 2), (AttentionKind::SlidingWindow { window: 3 }, 2)];
    let mut trace = Trace::new(SchedulerConfig::new(16, 4).preemption(preemption), 22, &kinds);
    trace.add(0, 6, 3);
    trace.add(0, 7, 3);
    trace.step();
    let plan = trace.step();
    // Of 7 tokens in 4 blocks, the window reaches the last two blocks.
    let saved = |group| {
        let of_group = |op: &&BlockOp| matches!(op, BlockOp::SwapOut { group: g, .. } if g.get() == group);
        plan.block_ops.iter().filter(of_group).count()
    };
    assert_eq!([0, 1, 2].map(saved), [4, 4, 2]);
    trace.copies.clear();
    insta::assert_snapshot!(trace.finish().lines().take(2).collect::<Vec<_>>().join("\n"), @r"
    q0 |P6|D1|D1$ |   |
    q1 |P7|x |+7D1|D1$|
    ");
}

#[test]
fn samples_share_their_prompt() {
    let mut trace = Trace::new(SchedulerConfig::new(16, 4), 20, &FULL);
    trace.request(Request::new((0..6).collect(), 3).num_samples(3));
    trace.add(0, 2, 1);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |P6 |D1|D1$|
    q1 |.  |D1|D1$|
    q2 |.  |D1|D1$|
    q3 |P2$|  |   |
    1: b2 to b4
    1: b2 to b5
    ");
}

#[test]
fn a_window_never_holds_more_than_it_reaches() {
    let window = [(AttentionKind::SlidingWindow { window: 6 }, 4)];
    let mut trace = Trace::new(SchedulerConfig::new(8, 1), 6, &window);
    trace.add(0, 40, 4);
    let mut used = Vec::new();
    while trace.scheduler.has_work() {
        trace.step();
        used.push(trace.scheduler.cache().pool().num_used());
    }
    insta::assert_snapshot!(format!("{}blocks {used:?}", trace.draw()), @r"
    q0 |P8|P8|P8|P8|P8|D1|D1|D1$|
    blocks [2, 4, 4, 4, 4, 3, 2, 0]
    ");
}

#[test]
fn a_load_does_not_hold_up_others() {
    let mut trace = Trace::new(SchedulerConfig::new(16, 4), 30, &FULL);
    trace.request(Request::new((0..12).collect(), 2).external_tokens(10));
    trace.add(0, 5, 4);
    trace.step();
    trace.step();
    let load = trace.memory.loads.pop().unwrap();
    assert_eq!((load.start, load.len), (0, 10));
    trace.memory.deliver(&mut trace.scheduler, &FULL, load, 9);
    insta::assert_snapshot!(trace.finish(), @r"
    q0 |L |L |+8P4|D1$|
    q1 |P5|D1|D1  |D1$|
    ");
}

#[test]
fn right_drafts_save_steps() {
    let config = SchedulerConfig::new(16, 4).num_lookahead_tokens(3);
    let mut trace = Trace::new(config, 30, &FULL);
    let seq = trace.add(0, 5, 9);
    trace.step();
    for right in [3, 1, 0] {
        let mut tokens = trace.scheduler.tokens(seq).unwrap().to_vec();
        let confirmed = tokens.len();
        for index in 0..3 {
            let token = crate::support::next_token(&tokens, seq.get());
            tokens.push(if index < right { token } else { token + 1 });
        }
        trace.scheduler.set_drafts(seq, &tokens[confirmed..]);
        trace.step();
    }
    insta::assert_snapshot!(trace.finish(), @"q0 |P5|D4|D4|D2|D1$|");
}
