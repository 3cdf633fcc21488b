//! Residency of sparse decoding: tables against a naive reading of the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use insta::assert_snapshot;
use kvblock::{BlockId, BlockIdx};
use prefetch::residency::{Residency, ResidencyError, ResidencyPlan};
use proptest::prelude::*;

fn idx(blocks: &[u32]) -> Vec<BlockIdx> {
    blocks.iter().copied().map(BlockIdx::new).collect()
}

/// Prompt block `i` lies in device block `100 + i`.
fn residency(resident: &[u32], free: &[u32], extra: usize) -> Residency {
    let table = resident.iter().map(|&i| (BlockIdx::new(i), BlockId::new(100 + i)));
    Residency::new(table, free.iter().map(|&d| BlockId::new(d)), extra).unwrap()
}

fn draw(plan: &ResidencyPlan) -> String {
    let mut text = format!("{} hits\n", plan.hits);
    for load in &plan.loads {
        let evicts = load.evicts.map_or(String::new(), |block| format!(", evicts {block:?}"));
        writeln!(text, "load {:?} into {:?}{evicts}", load.block, load.into).unwrap();
    }
    let table: Vec<_> = plan.table.iter().map(|(block, device)| format!("{block:?}@{device:?}")).collect();
    write!(text, "attend {}\ndropped {:?}", table.join(" "), plan.dropped).unwrap();
    text
}

#[test]
fn misses_take_free_blocks_in_order_of_importance_and_never_a_hit() {
    // 103 and 104 hold prompt blocks 3 and 4; 3 is wanted again, so only 104 and the empty 200 can be
    // overwritten.
    let mut tables = residency(&[0, 1, 3, 4], &[103, 104, 200], 0);
    let plan = tables.plan(&idx(&[9, 3, 7, 0, 8]));
    assert_snapshot!(draw(&plan), @r"
    2 hits
    load i9 into b104, evicts i4
    load i7 into b200
    attend i0@b100 i3@b103 i7@b200 i9@b104
    dropped [i8]
    ");
    tables.commit(&plan).unwrap();
    assert_snapshot!(format!("{:?}", tables.free()), @"[b101]");
}

#[test]
fn enough_hits_stop_the_walk_and_nothing_is_loaded() {
    let tables = residency(&[0, 1, 2, 3], &[103], 2);
    assert_snapshot!(draw(&tables.plan(&idx(&[8, 2, 0, 9]))), @r"
    2 hits
    attend i0@b100 i2@b102
    dropped [i8]
    ");
    assert!(tables.is_missing_any(&idx(&[0, 9])) && !tables.is_missing_any(&idx(&[0, 3])));
}

#[test]
fn a_failed_load_leaves_the_tables_unchanged() {
    let tables = residency(&[0, 1, 2], &[101], 0);
    let before = tables.clone();
    let plan = tables.plan(&idx(&[5, 0]));
    assert_eq!(plan.loads.len(), 1);
    // The load fails: the plan is dropped. The next list still finds block 1 where it was.
    drop(plan);
    assert_eq!(tables, before);
    assert_eq!(tables.plan(&idx(&[1])).table, [(BlockIdx::new(1), BlockId::new(101))]);
}

#[test]
fn an_outdated_plan_and_a_shared_device_block_are_refused() {
    let mut tables = residency(&[0, 1], &[100, 101], 0);
    let (first, second) = (tables.plan(&idx(&[5])), tables.plan(&idx(&[6])));
    tables.commit(&first).unwrap();
    assert_eq!(tables.commit(&second), Err(ResidencyError::Outdated { planned: 0, current: 1 }));
    let shared = [(BlockIdx::new(0), BlockId::new(7)), (BlockIdx::new(1), BlockId::new(7))];
    let error = Residency::new(shared, [], 0).unwrap_err();
    assert_eq!(error, ResidencyError::Repeated { device: BlockId::new(7) });
}

proptest! {
    #[test]
    fn tables_stay_consistent_over_many_lists(
        lists in prop::collection::vec(prop::collection::vec(0u32..24, 0..8), 1..12),
        resident in 0u32..8,
        empty in 0u32..4,
        extra in 0usize..3,
        failures in prop::collection::vec(any::<bool>(), 12),
    ) {
        let prompt: Vec<u32> = (0..resident).collect();
        let free: Vec<u32> = prompt.iter().map(|i| 100 + i).chain(200..200 + empty).collect();
        let mut tables = residency(&prompt, &free, extra);
        let devices: BTreeSet<BlockId> = free.iter().map(|&d| BlockId::new(d)).collect();
        for (list, fails) in lists.iter().zip(failures) {
            let before: BTreeMap<_, _> = tables.resident().collect();
            let mut distinct = Vec::new();
            list.iter().map(|&i| BlockIdx::new(i)).for_each(|b| if !distinct.contains(&b) { distinct.push(b) });
            let plan = tables.plan(&idx(list));

            let resident = distinct.iter().filter(|b| before.contains_key(b)).count();
            let enough = distinct.len().saturating_sub(extra);
            prop_assert_eq!(plan.hits, resident.min(enough));
            let overwritable = tables.free().iter().filter(|device| {
                !before.iter().any(|(block, held)| held == *device && distinct.contains(block))
            });
            let loads =
                if resident >= enough { 0 } else { (distinct.len() - resident).min(overwritable.count()) };
            prop_assert_eq!(plan.loads.len(), loads);
            prop_assert!(plan.table.is_sorted());
            for &(block, device) in &plan.table {
                let loaded = plan.loads.iter().any(|load| load.block == block && load.into == device);
                prop_assert!(loaded || before.get(&block) == Some(&device));
            }
            for load in &plan.loads {
                prop_assert_eq!(load.evicts, before.iter().find(|(_, d)| **d == load.into).map(|(b, _)| *b));
                prop_assert!(load.evicts.is_none_or(|evicted| !distinct.contains(&evicted)));
            }
            if fails {
                continue;
            }
            tables.commit(&plan).unwrap();
            let after: BTreeMap<_, _> = tables.resident().collect();
            prop_assert!(plan.table.iter().all(|(block, device)| after.get(block) == Some(device)));
            let held: BTreeSet<_> = after.values().copied().collect();
            prop_assert_eq!(held.len(), after.len(), "two prompt blocks in one device block");
            // Free is exactly what the next step may overwrite: everything that is not attended.
            let attended: BTreeSet<_> = plan.table.iter().map(|&(_, device)| device).collect();
            let free: BTreeSet<_> = tables.free().iter().copied().collect();
            prop_assert_eq!(free, devices.difference(&attended).copied().collect());
        }
    }
}
