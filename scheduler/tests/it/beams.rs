//! Sequences that split and end at every step, as the hypotheses of a beam search do.

use crate::support::{Memory, cache_config, check_conservation, check_plan};
use kvblock::{AttentionKind, SeqId, TokenId};
use proptest::prelude::*;
use scheduler::{BlockOp, Ending, Request, Scheduler, SchedulerConfig};

const FULL: [(AttentionKind, u32); 1] = [(AttentionKind::FULL, 4)];

fn scheduler(kinds: &[(AttentionKind, u32)], beams: u32) -> Scheduler {
    Scheduler::new(SchedulerConfig::new(16, beams), cache_config(120, 40, kinds)).unwrap()
}

#[test]
fn a_fork_shares_blocks_and_the_one_that_ends_gives_its_own_back() {
    let mut scheduler = scheduler(&FULL, 2);
    let mut memory = Memory::default();
    let first = scheduler.add(Request::new((0..6).collect(), 9).num_samples(2)).unwrap();
    let second = SeqId::new(first.get() + 1);
    let plan = scheduler.step();
    memory.run(&scheduler, &FULL, &plan);
    assert_eq!(scheduler.complete_beams(&plan, &[&[10], &[20]]), (vec![vec![]; 2], vec![]));
    // Both beams descend from the second from now on.
    let plan = scheduler.step();
    memory.run(&scheduler, &FULL, &plan);
    assert_eq!(scheduler.cache().pool().num_used(), 3, "a shared block, and a last one each");
    let (forks, ended) = scheduler.complete_beams(&plan, &[&[], &[30, 31]]);
    let third = SeqId::new(second.get() + 1);
    assert_eq!(forks, [vec![], vec![third]]);
    assert_eq!((ended[0].seq, ended[0].reason, ended[0].output()), (first, Ending::Aborted, &[10][..]));
    assert_eq!(scheduler.tokens(second).unwrap()[6..], [20, 30]);
    assert_eq!(scheduler.tokens(third).unwrap()[6..], [20, 31]);
    assert_eq!(scheduler.cache().pool().num_used(), 2, "nothing was copied yet");
    let plan = scheduler.step();
    let copies = plan.block_ops.iter().filter(|op| matches!(op, BlockOp::Copy(_))).count();
    assert_eq!(copies, 1, "the first of two to write its seventh token's block copies it");
    memory.run(&scheduler, &FULL, &plan);
    check_conservation(&scheduler);
}

proptest! {
    #[test]
    fn every_descendant_reads_what_its_ancestors_wrote(
        beams in 1_u32..6,
        prompt in 1_u32..20,
        length in 1_u32..20,
        window in prop::option::of(1_u32..12),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 100),
    ) {
        let kind = window.map_or(AttentionKind::FULL, |window| AttentionKind::SlidingWindow { window });
        let kinds = [FULL[0], (kind, 4)];
        let mut scheduler = scheduler(&kinds, beams);
        let mut memory = Memory::default();
        let request = Request::new((0..prompt).collect(), length).num_samples(beams);
        scheduler.add(request).unwrap();
        let (mut choices, mut ended, mut token) = (choices.iter().cycle(), 0, 1000);
        while scheduler.has_work() {
            let plan = scheduler.step();
            check_plan(&scheduler, &plan, 16, beams);
            memory.run(&scheduler, &kinds, &plan);
            let rows = plan.sample_rows.len();
            let mut continuations: Vec<Vec<TokenId>> = vec![Vec::new(); rows];
            for _ in 0..rows {
                token += 1;
                continuations[choices.next().unwrap().index(rows)].push(token);
            }
            let continuations: Vec<&[TokenId]> = continuations.iter().map(Vec::as_slice).collect();
            let (forks, finished) = scheduler.complete_beams(&plan, &continuations);
            prop_assert_eq!(forks.len(), rows);
            ended += finished.iter().filter(|done| done.reason == Ending::LengthCapped).count();
            check_conservation(&scheduler);
        }
        prop_assert_eq!(ended, beams as usize);
        prop_assert_eq!(scheduler.cache().pool().num_used(), 0);
    }
}
