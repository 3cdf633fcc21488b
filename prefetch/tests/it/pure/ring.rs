//! The ring pipeline, with attention in f64 as oracle.

use insta::assert_snapshot;
use kvblock::{BlockId, BlockIdx};
use prefetch::ring::{Place, Ring, RingBlock, RingError, RingOp, RingUse, schedule};
use proptest::prelude::*;

fn selection(blocks: &[(u32, Option<u32>)]) -> Vec<RingBlock> {
    blocks
        .iter()
        .map(|&(i, r)| RingBlock { block: BlockIdx::new(i), resident: r.map(BlockId::new) })
        .collect()
}

fn draw(blocks: &[(u32, Option<u32>)], slots: u32) -> String {
    let ops = schedule(&selection(blocks), slots).unwrap();
    ops.iter().map(|op| format!("{op}\n")).collect()
}

#[test]
fn one_slot_alternates_load_and_attention() {
    assert_snapshot!(draw(&[(0, None), (3, None)], 1), @r"
    load i0 -> slot 0
    wait slot 0
    attend i0 in slot 0
    done slot 0
    merge i0
    load i3 -> slot 0
    wait slot 0
    attend i3 in slot 0
    done slot 0
    merge i3
    ");
}

#[test]
fn three_slots_preload_and_resident_blocks_keep_their_turn() {
    assert_snapshot!(draw(&[(0, None), (1, Some(40)), (2, None), (5, None), (6, None)], 3), @r"
    load i0 -> slot 0
    load i2 -> slot 1
    load i5 -> slot 2
    wait slot 0
    attend i0 in slot 0
    done slot 0
    merge i0
    load i6 -> slot 0
    attend i1 in b40
    merge i1
    wait slot 1
    attend i2 in slot 1
    done slot 1
    merge i2
    wait slot 2
    attend i5 in slot 2
    done slot 2
    merge i5
    wait slot 0
    attend i6 in slot 0
    done slot 0
    merge i6
    ");
}

#[test]
fn bad_selections_are_named() {
    let disordered = schedule(&selection(&[(3, None), (3, None)]), 2).unwrap_err();
    assert_snapshot!(disordered, @"block i3 follows i3 in a selection that must ascend");
    assert_eq!(schedule(&selection(&[(3, None)]), 0), Err(RingError::NoSlots { missing: 1 }));
    assert_eq!(schedule(&selection(&[(3, Some(1))]), 0).unwrap().len(), 2, "resident blocks need no slot");
}

#[test]
fn slots_for_new_tokens_do_not_load() {
    assert_eq!(RingUse::Prefill.load_slots(3), [0, 1, 2]);
    assert_eq!(RingUse::PrefillInRing { chunk: 4 }.load_slots(3), [0, 2]);
    assert_eq!(RingUse::Decode.load_slots(3), [1, 2]);
}

/// Scores and values of one query over blocks of keys; everything the merge needs.
#[derive(Debug)]
struct Problem {
    /// `[blocks][keys]`, (score, value).
    keys: Vec<Vec<(f64, f64)>>,
}

/// An attention output with its log-sum-exp.
type Partial = (f64, f64);

impl Problem {
    fn attend(&self, block: BlockIdx) -> Partial {
        softmax(&self.keys[block.get() as usize])
    }

    fn dense(&self, blocks: &[RingBlock]) -> f64 {
        let keys: Vec<_> = blocks.iter().flat_map(|b| self.keys[b.block.get() as usize].clone()).collect();
        softmax(&keys).0
    }
}

fn softmax(keys: &[(f64, f64)]) -> Partial {
    let max = keys.iter().map(|k| k.0).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = keys.iter().map(|k| (k.0 - max).exp()).sum();
    let out: f64 = keys.iter().map(|k| (k.0 - max).exp() * k.1).sum();
    (out / sum, max + sum.ln())
}

fn merge(acc: Option<Partial>, (out, lse): Partial) -> Partial {
    let Some((acc_out, acc_lse)) = acc else { return (out, lse) };
    let max = acc_lse.max(lse);
    let (a, b) = ((acc_lse - max).exp(), (lse - max).exp());
    ((a * acc_out + b * out) / (a + b), max + (a + b).ln())
}

/// Runs the event-driven ring; `picks` decides which of the running copies and attentions ends next.
fn run(problem: &Problem, blocks: &[RingBlock], slots: u32, mut picks: impl Iterator<Item = usize>) -> f64 {
    enum Running {
        Load(u32),
        Attend(u32),
    }
    let mut ring = Ring::new(blocks, slots).unwrap();
    let mut memory: Vec<Option<BlockIdx>> = vec![None; slots as usize];
    let mut running = Vec::new();
    let mut acc = None;
    loop {
        while let Some((block, slot)) = ring.start_load() {
            assert!(
                !running.iter().any(|r| matches!(r, Running::Attend(s) | Running::Load(s) if *s == slot))
            );
            memory[slot as usize] = Some(block);
            running.push(Running::Load(slot));
        }
        if let Some((block, place)) = ring.start_attend() {
            if let Place::Slot(slot) = place {
                assert_eq!(memory[slot as usize], Some(block), "attention reads what was loaded for it");
                assert!(!running.iter().any(|r| matches!(r, Running::Load(s) if *s == slot)));
                running.push(Running::Attend(slot));
            }
            acc = Some(merge(acc, problem.attend(block)));
        } else if ring.is_done() {
            return acc.map_or(0.0, |a| a.0);
        } else {
            assert!(!running.is_empty(), "the pipeline stands still");
            let at = picks.next().unwrap_or(0) % running.len();
            match running.remove(at) {
                Running::Load(slot) => ring.loaded(slot),
                Running::Attend(slot) => ring.attended(slot),
            }
        }
    }
}

fn problem() -> impl Strategy<Value = Problem> {
    let key = (-40i32..40, -64i32..64).prop_map(|(s, v)| (f64::from(s) / 4.0, f64::from(v) / 16.0));
    prop::collection::vec(prop::collection::vec(key, 1..5), 1..14).prop_map(|keys| Problem { keys })
}

proptest! {
    #[test]
    fn the_result_depends_on_neither_slots_nor_residency_nor_timing(
        problem in problem(),
        chosen in prop::collection::vec((prop::bool::weighted(0.8), prop::bool::weighted(0.3)), 14),
        slots in 1u32..6,
        picks in prop::collection::vec(any::<usize>(), 0..60),
    ) {
        let all: Vec<RingBlock> = (0..).zip(&problem.keys).zip(&chosen)
            .filter(|(_, (selected, _))| *selected)
            .map(|((i, _), (_, resident))| {
                RingBlock { block: BlockIdx::new(i), resident: resident.then(|| BlockId::new(i)) }
            })
            .collect();
        let streamed: Vec<_> = all.iter().map(|b| RingBlock { resident: None, ..*b }).collect();
        let reference = run(&problem, &streamed, 1, std::iter::empty());
        let result = run(&problem, &all, slots, picks.into_iter());
        prop_assert_eq!(result.to_bits(), reference.to_bits());
        if !all.is_empty() {
            let dense = problem.dense(&all);
            prop_assert!((result - dense).abs() <= 1e-12 * (1.0 + dense.abs()), "{} against {}", result, dense);
        }
    }

    /// The static list merges in position order, waits before it attends, and never loads over an unread
    /// slot.
    #[test]
    fn the_schedule_respects_its_hazards(resident in prop::collection::vec(any::<bool>(), 0..20), slots in 1u32..6) {
        let blocks: Vec<_> = (0..).zip(resident).map(|(i, r)| (i, r.then_some(i))).collect();
        let mut loaded = vec![None; slots as usize];
        let mut waited = vec![false; slots as usize];
        let mut merged = Vec::new();
        for op in schedule(&selection(&blocks), slots).unwrap() {
            match op {
                RingOp::Load { block, slot } => {
                    prop_assert_eq!(loaded[slot as usize].replace(block), None);
                    waited[slot as usize] = false;
                }
                RingOp::Wait { slot } => waited[slot as usize] = true,
                RingOp::Attend { block, place: Place::Slot(slot) } => {
                    prop_assert!(waited[slot as usize]);
                    prop_assert_eq!(loaded[slot as usize], Some(block));
                }
                RingOp::Attend { .. } => {}
                RingOp::ComputeDone { slot } => loaded[slot as usize] = None,
                RingOp::Merge { block } => merged.push(block.get()),
            }
        }
        prop_assert_eq!(merged, (0..blocks.len()).map(|i| u32::try_from(i).unwrap()).collect::<Vec<_>>());
    }
}
