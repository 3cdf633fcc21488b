//! A request's output does not depend on its company: whatever is batched, cut, hit, evicted, preempted or
//! forked, every sequence gets the tokens it would get alone, and every admitted request finishes.

use std::collections::BTreeMap;

use crate::support::{Memory, cache_config, checked_step, next_token};
use kvblock::{AttentionKind, ExtraKeys, KvCacheConfig, SeqId, TokenId};
use proptest::prelude::*;
use proptest::sample::Index;
use scheduler::{Ending, Finished, Policy, Preemption, Request, Scheduler, SchedulerConfig, Status};

const MAX_MODEL_LEN: u32 = 32;

/// Tokens that a sequence must end with, by definition of the stop rules.
fn alone(request: &Request, sample: SeqId) -> (Vec<TokenId>, Ending) {
    let mut tokens = request.prompt.clone();
    while tokens.len() < request.prompt.len() + request.max_tokens as usize {
        let token = next_token(&tokens, sample.get());
        tokens.push(token);
        let output = u32::try_from(tokens.len() - request.prompt.len()).unwrap();
        let is_eos = request.eos_ids.contains(&token) && !request.ignore_eos;
        if output >= request.min_tokens && (is_eos || request.stop_ids.contains(&token)) {
            return (tokens, Ending::Stopped);
        }
        if tokens.len() == MAX_MODEL_LEN as usize {
            break;
        }
    }
    (tokens, Ending::LengthCapped)
}

fn kind() -> impl Strategy<Value = AttentionKind> {
    prop_oneof![
        Just(AttentionKind::FULL),
        (1_u32..12).prop_map(|window| AttentionKind::SlidingWindow { window }),
        (1_u32..12).prop_map(|chunk| AttentionKind::ChunkedLocal { chunk }),
    ]
}

/// Chunked local attention needs one block size for all groups.
fn groups() -> impl Strategy<Value = Vec<(AttentionKind, u32)>> {
    let equal = (prop::collection::vec(kind(), 1..4), prop::sample::select(vec![1_u32, 2, 3, 4]))
        .prop_map(|(kinds, size)| kinds.into_iter().map(|kind| (kind, size)).collect::<Vec<_>>());
    let mixed = (prop::sample::select(vec![2_u32, 4]), 1_u32..12, 1_u32..12).prop_map(|(size, a, b)| {
        let window = |window| AttentionKind::SlidingWindow { window };
        vec![(window(a), size), (AttentionKind::FULL, 4), (window(b), 2)]
    });
    prop_oneof![3 => equal, 1 => mixed]
}

fn request() -> impl Strategy<Value = Request> {
    // Two families of prompts: most requests share a prefix with others.
    let prompt =
        (0_u32..2, 1_u32..28).prop_map(|(start, len)| (start..start + len).map(|i| i * i % 5).collect());
    let lengths = (0_u32..14, 0_u32..4, 1_u32..4, prop_oneof![Just(0), 1_u32..30]);
    let stops = (any::<bool>(), prop::option::of(0_u32..5));
    let lookup = (prop::bool::weighted(0.2), prop::option::weighted(0.1, Just("t".to_owned())));
    (prompt, lengths, stops, lookup, 0_i32..3).prop_map(|(prompt, lengths, stops, lookup, priority)| {
        let (max_tokens, min_tokens, num_samples, external_tokens) = lengths;
        Request::new(prompt, max_tokens)
            .min_tokens(min_tokens.min(max_tokens))
            .eos_ids(vec![4])
            .ignore_eos(stops.0)
            .stop_ids(stops.1.into_iter().collect())
            .priority(priority)
            .num_samples(num_samples)
            .extra_keys(ExtraKeys { salt: lookup.1, ..ExtraKeys::default() })
            .external_tokens(external_tokens)
            .skip_prefix_lookup(lookup.0)
    })
}

fn config() -> impl Strategy<Value = SchedulerConfig> {
    let limits = (1_u32..24, 3_u32..8, 0_u32..6, prop_oneof![Just(0), 1_u32..4]);
    let swap = prop::option::of((0_u32..30).prop_map(|num_host_blocks| Preemption::Swap { num_host_blocks }));
    (limits, prop::option::of(0_u32..4), any::<bool>(), swap, prop::bool::weighted(0.9)).prop_map(
        |((budget, seqs, threshold, num_lookahead_tokens), priority, reserve_full_input, swap, chunked)| {
            let budget = if chunked { budget } else { MAX_MODEL_LEN + budget };
            SchedulerConfig::new(budget, seqs)
                .chunked_prefill(chunked)
                .policy(priority.map_or(Policy::Fcfs, |ageing_steps| Policy::Priority { ageing_steps }))
                .preemption(swap.unwrap_or(Preemption::Recompute))
                .long_prefill_token_threshold(threshold)
                .reserve_full_input(reserve_full_input)
                .num_lookahead_tokens(num_lookahead_tokens)
        },
    )
}

fn cache(groups: &[(AttentionKind, u32)]) -> impl Strategy<Value = KvCacheConfig> + use<> {
    let groups = groups.to_vec();
    (8_u32..50, prop::bool::weighted(0.8), any::<bool>(), any::<bool>()).prop_map(
        move |(num_blocks, caching, verify_tokens, reuse_unhashed_first)| {
            cache_config(num_blocks, MAX_MODEL_LEN, &groups)
                .caching(caching)
                .verify_tokens(verify_tokens)
                .reuse_unhashed_first(reuse_unhashed_first)
        },
    )
}

#[derive(Debug, Clone)]
enum Action {
    Add(Request),
    Step,
    Abort(usize),
    /// Plan a step that then does not run.
    Fail,
    /// Propose drafts to the n-th running sequence; the mask tells which of them the model will agree with.
    Draft(usize, u8),
    /// End the n-th load, with a part of its tokens.
    Deliver(usize, Index),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => request().prop_map(Action::Add),
        6 => Just(Action::Step),
        1 => (0_usize..64).prop_map(Action::Abort),
        1 => Just(Action::Fail),
        3 => (0_usize..4, any::<u8>()).prop_map(|(seq, mask)| Action::Draft(seq, mask)),
        2 => (0_usize..4, any::<Index>()).prop_map(|(load, part)| Action::Deliver(load, part)),
    ];
    prop::collection::vec(action, 1..40)
}

struct Session {
    scheduler: Scheduler,
    memory: Memory,
    kinds: Vec<(AttentionKind, u32)>,
    limits: (u32, u32),
    expected: BTreeMap<SeqId, (Vec<TokenId>, Ending)>,
}

impl Session {
    fn apply(&mut self, action: Action) {
        match action {
            Action::Add(request) => {
                let Ok(first) = self.scheduler.add(request.clone()) else { return };
                for sample in (0..u64::from(request.num_samples)).map(|i| SeqId::new(first.get() + i)) {
                    self.expected.insert(sample, alone(&request, sample));
                }
            }
            Action::Step => {
                let step = checked_step(&mut self.scheduler, &mut self.memory, &self.kinds, self.limits);
                self.check_finished(step.1);
            }
            Action::Abort(index) => {
                let Some(&seq) = self.expected.keys().nth(index) else { return };
                if self.scheduler.status(seq) == Some(Status::WaitingForRemoteKv) {
                    self.memory.loads.retain(|load| load.seq != seq);
                }
                let ended = self.scheduler.abort(seq);
                assert!(!ended.is_empty(), "{seq:?} is not known");
                for finished in ended {
                    let (tokens, _) = self.expected.remove(&finished.seq).unwrap();
                    assert!(tokens.starts_with(&finished.tokens));
                }
                crate::support::check_conservation(&self.scheduler);
            }
            Action::Fail => {
                let plan = self.scheduler.step();
                for failed in self.scheduler.fail_step(&plan) {
                    self.expected.remove(&failed.seq).unwrap();
                }
                crate::support::check_conservation(&self.scheduler);
            }
            Action::Draft(index, mask) => self.draft(index, mask),
            Action::Deliver(index, part) => {
                self.deliver(index, |len| u32::try_from(part.index(len as usize + 1)).unwrap())
            }
        }
    }

    fn draft(&mut self, index: usize, mask: u8) {
        let Some(&seq) = self.scheduler.running().get(index) else { return };
        let mut tokens = self.scheduler.tokens(seq).unwrap().to_vec();
        let confirmed = tokens.len();
        for bit in 0..3 {
            let right = next_token(&tokens, seq.get());
            tokens.push(if mask >> bit & 1 == 1 { right } else { (right + 1) % 5 });
        }
        self.scheduler.set_drafts(seq, &tokens[confirmed..]);
    }

    fn deliver(&mut self, index: usize, arrived: impl Fn(u32) -> u32) {
        if index < self.memory.loads.len() {
            let load = self.memory.loads.remove(index);
            self.memory.deliver(&mut self.scheduler, &self.kinds, load, arrived(load.len));
            // After a load that ended early, what arrived is offered again.
            let offered = self.scheduler.loadable_tokens(load.seq);
            if offered > 0 {
                assert!(offered < load.start + load.len);
                self.scheduler.set_external_tokens(load.seq, offered);
            }
            crate::support::check_conservation(&self.scheduler);
        }
    }

    fn check_finished(&mut self, finished: Vec<Finished>) {
        for finished in finished {
            let expected = self.expected.remove(&finished.seq).unwrap();
            assert_eq!((finished.tokens, finished.reason), expected, "output of {:?}", finished.seq);
        }
    }
}

proptest! {
    #[test]
    fn every_sequence_gets_the_tokens_it_gets_alone(
        (kinds, cache) in groups().prop_flat_map(|groups| (Just(groups.clone()), cache(&groups))),
        config in config(),
        actions in actions(),
    ) {
        let mut session = Session {
            scheduler: Scheduler::new(config, cache).unwrap(),
            memory: Memory::default(),
            kinds,
            limits: (config.max_num_batched_tokens, config.max_num_seqs),
            expected: BTreeMap::new(),
        };
        for action in actions {
            session.apply(action);
        }
        // Liveness: the bound is far above what any schedule of so few tokens takes.
        for _ in 0..20_000 {
            if !session.scheduler.has_work() {
                break;
            }
            session.apply(Action::Step);
            session.deliver(0, |len| len);
        }
        prop_assert!(session.expected.is_empty(), "unfinished: {:?}", session.expected.keys());
        prop_assert_eq!(session.scheduler.cache().pool().num_used(), 0);
        if let Preemption::Swap { num_host_blocks } = config.preemption {
            prop_assert_eq!(session.scheduler.num_free_host_blocks(), num_host_blocks as usize);
        }
        prop_assert!(session.scheduler.cache_mut().reset_prefix_cache());
    }
}
