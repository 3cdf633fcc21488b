//! Plans of a step.

use std::collections::HashSet;

use insta::assert_snapshot;
use kvblock::{BlockHash, SeqId};
use prefetch::plan::{BlockDemand, Budget, Fetch, Priority, plan};
use proptest::prelude::*;

use super::{hash, hashes};

const UNLIMITED: Budget = Budget { fetches_max: usize::MAX, blocks_max: usize::MAX };

fn want(seq: u64, position: u32, selected: &[BlockHash]) -> BlockDemand<'_> {
    BlockDemand { seq: SeqId::new(seq), position, selected }
}

fn draw(fetches: &[Fetch]) -> String {
    fetches.iter().map(|fetch| format!("{fetch}\n")).collect()
}

#[test]
fn only_selected_blocks_that_are_missing_are_fetched_in_batch_order() {
    let (shared, own, tail) = (hashes([1, 2, 3]), hashes([3, 4, 4, 5]), hashes([9]));
    let wants = [want(30, 17, &tail), want(20, 3, &own), want(10, 0, &shared), want(40, 16, &shared[..1])];
    let plan = plan(&wants, |block| block == hash(1), UNLIMITED);
    assert_snapshot!(draw(&plan), @r"
    q10 URGENT h02000000 h03000000
    q20 HIGH   h03000000 h04000000 h05000000
    q30 LOW    h09000000
    ");
}

#[test]
fn a_block_budget_cuts_the_least_important_blocks_of_the_last_requests() {
    let (first, second, third) = (hashes(0..3), hashes([2, 3, 4, 0]), hashes([8]));
    let wants = [want(1, 0, &first), want(2, 5, &second), want(3, 6, &third)];
    let budget = Budget { fetches_max: 2, blocks_max: 4 };
    assert_snapshot!(draw(&plan(&wants, |_| false, budget)), @r"
    q1 URGENT h00000000 h01000000 h02000000
    q2 NORMAL h02000000 h03000000 h00000000
    ");
}

#[test]
fn priority_classes_change_after_positions_0_4_and_16() {
    let classes: Vec<_> = (0..20).map(Priority::of_position).collect();
    assert!(classes.is_sorted());
    let counts = Priority::ALL.map(|class| classes.iter().filter(|&&c| c == class).count());
    assert_eq!(counts, [1, 4, 12, 3]);
}

proptest! {
    #[test]
    fn a_plan_keeps_its_promises(
        selections in prop::collection::vec((0u32..20, prop::collection::vec(0u8..12, 0..8)), 0..8),
        resident in prop::collection::hash_set(0u8..12, 0..6),
        fetches_max in 0usize..6,
        blocks_max in 0usize..12,
    ) {
        let selections: Vec<_> = selections.into_iter().map(|(p, blocks)| (p, hashes(blocks))).collect();
        let resident: HashSet<_> = resident.into_iter().map(hash).collect();
        let wants: Vec<_> = (0..).zip(&selections).map(|(seq, (p, blocks))| want(seq, *p, blocks)).collect();
        let fetches = plan(&wants, |block| resident.contains(&block), Budget { fetches_max, blocks_max });

        prop_assert!(fetches.len() <= fetches_max);
        prop_assert!(fetches.is_sorted_by_key(|fetch| fetch.priority));
        let distinct: HashSet<_> = fetches.iter().flat_map(|fetch| &fetch.blocks).collect();
        prop_assert!(distinct.len() <= blocks_max);
        for fetch in &fetches {
            let (_, selected) = &selections[usize::try_from(fetch.seq.get()).unwrap()];
            prop_assert!(!fetch.blocks.is_empty());
            // Same order as selected, each once, none resident.
            let mut rest = selected.iter();
            prop_assert!(fetch.blocks.iter().all(|block| rest.any(|s| s == block)));
            prop_assert!(fetch.blocks.iter().all(|block| !resident.contains(block)));
            prop_assert_eq!(fetch.blocks.iter().collect::<HashSet<_>>().len(), fetch.blocks.len());
        }
        // With budget left over, nothing that was wanted is missing from the plan.
        if fetches.len() < fetches_max && distinct.len() < blocks_max {
            let missing = selections.iter().flat_map(|(_, s)| s).filter(|b| !resident.contains(b));
            prop_assert!(missing.into_iter().all(|block| distinct.contains(block)));
        }
    }
}
