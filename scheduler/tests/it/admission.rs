//! Refusals at admission, and the view of sparse and prefetch callers.

use crate::support::{Memory, cache_config, checked_step};
use kvblock::{AttentionKind, BlockIdx, SeqId};
use proptest::prelude::*;
use scheduler::{AdmitError, ConfigError, Ending, Request, Scheduler, SchedulerConfig, Status};

const FULL: [(AttentionKind, u32); 1] = [(AttentionKind::FULL, 4)];

fn scheduler(num_blocks: u32, kinds: &[(AttentionKind, u32)]) -> Scheduler {
    Scheduler::new(SchedulerConfig::new(8, 4), cache_config(num_blocks, 64, kinds)).unwrap()
}

#[test]
fn a_request_that_can_never_finish_is_refused_with_the_numbers() {
    let mut small = scheduler(5, &FULL);
    let error = small.add(Request::new(vec![1; 10], 8)).unwrap_err();
    let expected =
        AdmitError::NeverFits { needed_blocks: 5, pool_blocks: 4, num_tokens: 17, context_len: 64 };
    assert_eq!(error, expected);
    assert_eq!(error.to_string(), "5 blocks needed for 17 tokens, the pool has 4; context length 64");
    assert!(small.add(Request::new(vec![1; 10], 7)).is_ok(), "the last token needs no slot");
    let error = small.add(Request::new(vec![1; 64], 1)).unwrap_err();
    assert_eq!(error, AdmitError::ContextLength { prompt_tokens: 64, context_len: 64 });
    assert_eq!(small.add(Request::new(vec![], 1)), Err(AdmitError::EmptyPrompt));
    assert_eq!(small.add(Request::new(vec![1], 1).num_samples(0)), Err(AdmitError::NoSamples));
    let error = small.add(Request::new(vec![1; 17], 0)).unwrap_err();
    assert_eq!(error.to_string(), "5 blocks needed for 17 tokens, the pool has 4; context length 64");
    let many = Request::new(vec![1], 1).num_samples(5);
    assert_eq!(small.add(many), Err(AdmitError::TooManySamples { num_samples: 5, max_num_seqs: 4 }));
    let min = Request::new(vec![1], 2).min_tokens(3);
    assert_eq!(small.add(min), Err(AdmitError::MinAboveMax { min_tokens: 3, max_tokens: 2 }));
}

#[test]
fn a_refusal_changes_nothing() {
    let mut scheduler = scheduler(5, &FULL);
    scheduler.add(Request::new(vec![1; 3], 2)).unwrap();
    let before = format!("{scheduler:?}");
    for request in [
        Request::new(vec![], 1),
        Request::new(vec![1; 10], 8),
        Request::new(vec![1; 64], 1),
        Request::new(vec![1; 4], 1).num_samples(0),
        Request::new(vec![1], 2).min_tokens(3),
        Request::new(vec![1], 1).num_samples(5),
        Request::new(vec![1; 4], u32::MAX),
    ] {
        assert!(scheduler.add(request).is_err());
        assert_eq!(format!("{scheduler:?}"), before);
    }
    assert!(scheduler.abort(SeqId::new(77)).is_empty());
    scheduler.remote_ready(SeqId::new(77), 3);
    assert_eq!(format!("{scheduler:?}"), before, "an unknown sequence");
}

#[test]
fn a_window_admits_prompts_longer_than_the_pool() {
    // Steps of 8 and a window of 6 hold at most cdiv(5 + 8, 4) + 1 = 5 blocks.
    let window = [(AttentionKind::SlidingWindow { window: 6 }, 4)];
    assert!(scheduler(6, &window).add(Request::new(vec![1; 60], 2)).is_ok());
    assert!(scheduler(5, &window).add(Request::new(vec![1; 60], 2)).is_err());
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let new = |config| Scheduler::new(config, cache_config(9, 64, &FULL)).map(|_| ());
    let none = ConfigError::NoRoom { max_num_batched_tokens: 0, max_num_seqs: 1 };
    assert_eq!(new(SchedulerConfig::new(0, 1)), Err(none));
    let unchunked = SchedulerConfig::new(63, 1).chunked_prefill(false);
    let expected = ConfigError::UnchunkedBudget { max_num_batched_tokens: 63, max_model_len: 64 };
    assert_eq!(new(unchunked), Err(expected));
    let cache = ConfigError::Cache(kvblock::ConfigError::TooFewBlocks { num_blocks: 1 });
    assert_eq!(
        Scheduler::new(SchedulerConfig::new(1, 1), cache_config(1, 64, &FULL)).map(|_| ()),
        Err(cache)
    );
}

#[test]
fn aborting_frees_blocks_even_while_a_step_is_in_flight() {
    let mut scheduler = scheduler(20, &FULL);
    let first = scheduler.add(Request::new(vec![1; 6], 5).num_samples(2)).unwrap();
    let other = scheduler.add(Request::new(vec![2; 2], 5)).unwrap();
    let plan = scheduler.step();
    assert_eq!(plan.sample_rows.len(), 3);
    let ended = scheduler.abort(first);
    assert_eq!(ended.iter().map(|end| end.reason).collect::<Vec<_>>(), [Ending::Aborted; 2]);
    assert!(scheduler.abort(first).is_empty());
    assert!(scheduler.complete(&plan, &[7, 8, 9]).is_empty());
    assert_eq!(scheduler.tokens(other).unwrap(), [2, 2, 9]);
    assert_eq!(scheduler.status(first), None);
    crate::support::check_conservation(&scheduler);
    assert_eq!(scheduler.cache().pool().num_used(), 1);
}

#[test]
fn a_later_sample_can_be_aborted_before_it_starts() {
    let mut scheduler = scheduler(20, &FULL);
    let first = scheduler.add(Request::new(vec![1; 6], 1).num_samples(3)).unwrap();
    let second = SeqId::new(first.get() + 1);
    assert_eq!(scheduler.abort(second)[0].seq, second);
    let plan = scheduler.step();
    let finished = scheduler.complete(&plan, &[3, 4]);
    let outputs: Vec<(u64, &[u32])> = finished.iter().map(|end| (end.seq.get(), end.output())).collect();
    assert_eq!(outputs, [(first.get(), &[3][..]), (first.get() + 2, &[4])]);
}

#[test]
fn loads_take_seats() {
    let config = SchedulerConfig::new(8, 2);
    let mut scheduler = Scheduler::new(config, cache_config(50, 64, &FULL)).unwrap();
    for start in [0, 20, 40] {
        scheduler.add(Request::new((start..start + 8).collect(), 1).external_tokens(6)).unwrap();
    }
    let loads = scheduler.step().loads;
    assert_eq!(loads.iter().map(|load| (load.seq.get(), load.len)).collect::<Vec<_>>(), [(0, 6), (1, 6)]);
    assert!(scheduler.step().is_empty());
    scheduler.remote_ready(loads[1].seq, 6);
    let plan = scheduler.step();
    assert_eq!(plan.admitted[0].cached_tokens, 6);
    assert_eq!((plan.slices[0].seq, plan.slices[0].start, plan.slices[0].len), (loads[1].seq, 6, 2));
}

#[test]
fn a_lookup_made_while_a_sequence_waits_counts_once() {
    let config = SchedulerConfig::new(8, 2);
    let mut scheduler = Scheduler::new(config, cache_config(50, 64, &FULL)).unwrap();
    let seq = scheduler.add(Request::new((0..12).collect(), 4)).unwrap();
    assert_eq!(scheduler.loadable_tokens(seq), 11);
    scheduler.set_external_tokens(seq, 8);
    let plan = scheduler.step();
    assert_eq!((plan.loads[0].start, plan.loads[0].len), (0, 8));
    assert_eq!(scheduler.loadable_tokens(seq), 0, "it is being loaded");
    // Half a load starts the sequence over, and no more than what arrived is loaded again.
    scheduler.remote_ready(seq, 4);
    assert_eq!(scheduler.loadable_tokens(seq), 4);
    scheduler.set_external_tokens(seq, 4);
    let plan = scheduler.step();
    assert!(plan.loads.is_empty());
    assert_eq!((plan.slices[0].start, plan.slices[0].len), (4, 8));
    scheduler.complete(&plan, &[7]);
    assert_eq!(scheduler.loadable_tokens(seq), 0, "it runs");
}

#[test]
#[should_panic(expected = "step Some(0) is not complete")]
fn a_step_must_complete_before_the_next() {
    let mut scheduler = scheduler(20, &FULL);
    scheduler.add(Request::new(vec![1], 5)).unwrap();
    scheduler.step();
    scheduler.step();
}

#[test]
fn accesses_are_counted_until_the_sequence_ends() {
    let mut scheduler = scheduler(20, &FULL);
    let seq = scheduler.add(Request::new((0..15).collect(), 3)).unwrap();
    let read = [0, 2, 2].map(BlockIdx::new);
    scheduler.record_access(seq, &read);
    scheduler.record_access(seq, &read[..1]);
    assert_eq!(scheduler.access_history().counts(seq), [2, 0, 2]);
    scheduler.abort(seq);
    scheduler.record_access(seq, &read);
    assert_eq!(scheduler.access_history().counts(seq), [0_u32; 0], "dropped when the request ends");
}

#[test]
fn a_sequence_that_has_ended_has_no_state() {
    let mut scheduler = scheduler(20, &FULL);
    let seq = scheduler.add(Request::new((0..5).collect(), 3)).unwrap();
    let plan = scheduler.step();
    let slice = plan.slices[0];
    assert_eq!(scheduler.slice_tokens(&slice).unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!((scheduler.num_computed(seq), scheduler.is_prefill(seq)), (Some(5), Some(false)));
    scheduler.abort(seq);
    assert_eq!(scheduler.slice_tokens(&slice), None);
    assert_eq!((scheduler.tokens(seq), scheduler.block_hashes(seq)), (None, None));
    assert_eq!((scheduler.cached_tokens(seq), scheduler.preemptions(seq)), (None, None));
    assert_eq!((scheduler.num_computed(seq), scheduler.is_prefill(seq)), (None, None));
    assert_eq!((scheduler.status(seq), scheduler.access_history().counts(seq)), (None, &[][..]));
    scheduler.complete(&plan, &[7]);
    assert_eq!(scheduler.set_drafts(seq, &[1, 2]), 0);
}

#[test]
fn prefetch_requests_are_the_blocks_after_the_hit_of_the_next_to_start() {
    let mut scheduler = scheduler(40, &FULL);
    let mut memory = Memory::default();
    let done = scheduler.add(Request::new((0..8).collect(), 1)).unwrap();
    checked_step(&mut scheduler, &mut memory, &FULL, (8, 4));
    assert_eq!(scheduler.status(done), None);
    scheduler.add(Request::new((0..16).collect(), 9)).unwrap();
    scheduler.add(Request::new((50..61).collect(), 9)).unwrap();
    scheduler.add(Request::new((70..90).collect(), 9)).unwrap();
    // Step 1: 8 tokens behind the hit of 8. Step 2: one decode, 7 of 11. Step 3: two decodes or the rest,
    // then the third.
    let requests = |ahead| {
        let list = scheduler.prefetch_requests(ahead);
        list.iter().map(|w| (w.seq.get(), w.batch, w.position, w.blocks.len())).collect::<Vec<_>>()
    };
    assert_eq!(requests(0), []);
    assert_eq!(requests(1), [(1, 1, 0, 1)], "blocks 0 and 1 are hits, block 3 holds the last token");
    assert_eq!(requests(2), [(1, 1, 0, 1), (2, 2, 1, 2)]);
    assert_eq!(requests(3), [(1, 1, 0, 1), (2, 2, 1, 2), (3, 3, 2, 4)]);
    assert_eq!(scheduler.status(SeqId::new(1)), Some(Status::Waiting));
}

proptest! {
    /// With blocks to spare, different prompts and no end, a forecast is exact.
    #[test]
    fn a_forecast_comes_true(
        prompts in prop::collection::vec(1_u32..30, 1..8),
        budget in 1_u32..20,
        threshold in 0_u32..8,
        seqs in 1_u32..6,
        before in 0_usize..4,
        ahead in 1_u32..6,
    ) {
        let config = SchedulerConfig::new(budget, seqs).long_prefill_token_threshold(threshold);
        let mut scheduler = Scheduler::new(config, cache_config(400, 64, &FULL)).unwrap();
        for (start, len) in (0..).step_by(100).zip(prompts) {
            scheduler.add(Request::new((start..start + len).collect(), 64)).unwrap();
        }
        let mut memory = Memory::default();
        for _ in 0..before {
            checked_step(&mut scheduler, &mut memory, &FULL, (budget, seqs));
        }
        for mut expected in scheduler.forecast(ahead) {
            let (plan, _) = checked_step(&mut scheduler, &mut memory, &FULL, (budget, seqs));
            let mut planned: Vec<SeqId> = plan.slices.iter().map(|slice| slice.seq).collect();
            planned.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(planned, expected);
        }
    }
}
