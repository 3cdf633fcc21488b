//! A request's output does not depend on its company: whatever is batched, cut, hit, evicted, preempted or forked, every
//! sequence gets the tokens it would get alone, and every admitted request finishes.

mod support;

use std::collections::BTreeMap;

use kvblock::{AttentionKind, ExtraKeys, KvCacheConfig, SeqId, TokenId};
use proptest::prelude::*;
use scheduler::{FinishReason, Finished, Policy, Request, Scheduler, SchedulerConfig};
use support::{Memory, cache_config, checked_step, next_token};

/// What a sequence must end with, by definition of the stop rules.
fn alone(request: &Request, sample: SeqId, max_model_len: u32) -> (Vec<TokenId>, FinishReason) {
    let mut tokens = request.prompt.clone();
    loop {
        let token = next_token(&tokens, sample.get());
        tokens.push(token);
        let output = u32::try_from(tokens.len() - request.prompt.len()).unwrap();
        let is_eos = request.eos_ids.contains(&token) && !request.ignore_eos;
        if output >= request.min_tokens && (is_eos || request.stop_ids.contains(&token)) {
            return (tokens, FinishReason::Stopped);
        }
        if output == request.max_tokens || tokens.len() == max_model_len as usize {
            return (tokens, FinishReason::LengthCapped);
        }
    }
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
    let shared_prompts = prop::sample::select(vec![0_u32, 1]).prop_flat_map(|start| (Just(start), 1_u32..28));
    let stops = (0_u32..4, any::<bool>(), prop::option::of(0_u32..5), any::<bool>());
    (shared_prompts, 1_u32..14, stops, 0_i32..3, 1_u32..4, prop::option::weighted(0.1, Just("t".to_owned())))
        .prop_map(
            |(
                (start, len),
                max_tokens,
                (min_tokens, ignore_eos, stop, skip),
                priority,
                num_samples,
                salt,
            )| Request {
                min_tokens: min_tokens.min(max_tokens),
                eos_ids: vec![4],
                ignore_eos,
                stop_ids: stop.into_iter().collect(),
                priority,
                num_samples,
                extra_keys: ExtraKeys { salt, ..ExtraKeys::default() },
                skip_prefix_lookup: skip,
                ..Request::new((start..start + len).map(|i| i * i % 5).collect(), max_tokens)
            },
        )
}

fn config() -> impl Strategy<Value = SchedulerConfig> {
    (1_u32..24, 3_u32..8, any::<bool>(), 0_u32..6, any::<bool>()).prop_map(
        |(budget, seqs, priority, threshold, reserve)| SchedulerConfig {
            policy: if priority { Policy::Priority } else { Policy::Fcfs },
            long_prefill_token_threshold: threshold,
            reserve_full_input: reserve,
            ..SchedulerConfig::new(budget, seqs)
        },
    )
}

fn cache(groups: &[(AttentionKind, u32)]) -> impl Strategy<Value = KvCacheConfig> + use<> {
    let groups = groups.to_vec();
    (8_u32..60, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        move |(num_blocks, caching, verify_tokens, reuse_unhashed_first)| KvCacheConfig {
            caching,
            verify_tokens,
            reuse_unhashed_first,
            ..cache_config(num_blocks, 32, &groups)
        },
    )
}

#[derive(Debug, Clone)]
enum Action {
    Add(Request),
    Step,
    Abort(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => request().prop_map(Action::Add),
        6 => Just(Action::Step),
        1 => any::<prop::sample::Index>().prop_map(|index| Action::Abort(index.index(64))),
    ];
    prop::collection::vec(action, 1..40)
}

struct Session {
    scheduler: Scheduler,
    memory: Memory,
    kinds: Vec<(AttentionKind, u32)>,
    limits: (u32, u32),
    expected: BTreeMap<SeqId, (Vec<TokenId>, FinishReason)>,
    max_model_len: u32,
}

impl Session {
    fn apply(&mut self, action: Action) {
        match action {
            Action::Add(request) => {
                let Ok(first) = self.scheduler.add(request.clone()) else { return };
                for sample in (0..u64::from(request.num_samples)).map(|i| SeqId::new(first.get() + i)) {
                    self.expected.insert(sample, alone(&request, sample, self.max_model_len));
                }
            }
            Action::Step => {
                let step = checked_step(&mut self.scheduler, &mut self.memory, &self.kinds, self.limits);
                self.check_finished(step.1);
            }
            Action::Abort(index) => {
                let Some(&seq) = self.expected.keys().nth(index) else { return };
                let ended = self.scheduler.abort(seq);
                assert!(!ended.is_empty(), "{seq:?} is not known");
                for finished in ended {
                    let (tokens, _) = self.expected.remove(&finished.seq).unwrap();
                    assert!(tokens.starts_with(&finished.tokens));
                }
                support::check_conservation(&self.scheduler);
            }
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
        let max_model_len = cache.limits.max_model_len;
        let mut session = Session {
            scheduler: Scheduler::new(config, cache).unwrap(),
            memory: Memory::default(),
            kinds,
            limits: (config.max_num_batched_tokens, config.max_num_seqs),
            expected: BTreeMap::new(),
            max_model_len,
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
        }
        prop_assert!(session.expected.is_empty(), "unfinished: {:?}", session.expected.keys());
        prop_assert_eq!(session.scheduler.cache().pool().num_used(), 0);
        prop_assert!(session.scheduler.cache_mut().reset_prefix_cache());
    }
}
