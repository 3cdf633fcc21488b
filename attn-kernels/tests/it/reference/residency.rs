//! `residency` against what its callers rely on, over several calls: which of equal slots it takes is left open, so a
//! call is compared by what must hold of it.

use std::collections::{BTreeMap, BTreeSet};

use super::by_hand::dispatch;
use super::device::{assert_draw_passes, cases, gpu};
use attn_kernels::cpu;
use attn_kernels::cpu::residency::Residents;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::residency::{self, HEADER, ResidencyParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use proptest::prelude::*;

const SHAPE: KvShape =
    KvShape { num_kv_heads: 2, head_dim: 64, block_size: 4, dtype: KvDtype::F16, layout: KvLayout::Native };
const HEADS: usize = SHAPE.num_kv_heads as usize;
const PAGES: u32 = 2;
const SLOTS: u32 = 40;
const BLOCKS: u32 = 64;
const STRIDE: u32 = 9;

/// Inputs of one call: lists of two sequences that share blocks of the pool.
#[derive(Clone, Debug)]
struct Call {
    /// `[2 sequences, heads]`, ascending.
    lists: Vec<BTreeSet<u32>>,
    lens: [u32; 2],
    first_page: u32,
    num_pages: u32,
    wish: bool,
    max_fetches: u32,
}

fn call() -> impl Strategy<Value = Call> {
    let lists = prop::collection::vec(prop::collection::btree_set(0u32..16, 0..STRIDE as usize), 2 * HEADS);
    let lens = [1u32..=128, 1u32..=128];
    (lists, lens, 0u32..6, 1u32..=SLOTS / 2, any::<bool>(), 1u32..8).prop_map(
        |(lists, lens, first_page, num_pages, wish, few)| {
            let max_fetches = if wish { few } else { SLOTS };
            Call { lists, lens, first_page, num_pages, wish, max_fetches }
        },
    )
}

impl Call {
    fn words(&self) -> Vec<u32> {
        let words = |list: &BTreeSet<u32>| {
            let mut words = vec![u32::try_from(list.len()).unwrap()];
            words.extend(list);
            words.resize(STRIDE as usize, u32::MAX);
            words
        };
        self.lists.iter().flat_map(words).collect()
    }

    fn params(&self) -> ResidencyParams {
        ResidencyParams {
            first_request: 0,
            requests: 2,
            num_kv_heads: SHAPE.num_kv_heads,
            list_stride: STRIDE,
            block_size: SHAPE.block_size,
            first_page: self.first_page,
            num_pages: self.num_pages,
            num_slots: SLOTS,
            max_fetches: self.max_fetches,
            write_pages: u32::from(!self.wish),
        }
    }

    /// Entries of the tables, 32 a sequence, that a head is asked for.
    fn entries(&self, head: usize) -> BTreeSet<usize> {
        let of_sequence = |sequence: usize| {
            let list = &self.lists[sequence * HEADS + head];
            let pages = list.iter().flat_map(|block| (0..PAGES).map(move |i| block * PAGES + i));
            let some = pages.skip(self.first_page as usize).take(self.num_pages as usize);
            some.filter(move |page| page * SHAPE.block_size < self.lens[sequence])
                .map(move |page| 32 * sequence + page as usize)
        };
        (0..2).flat_map(of_sequence).collect()
    }
}

fn run(
    gpu: &Gpu,
    params: &ResidencyParams,
    requests: &[[u32; 4]],
    lists: &[u32],
    tables: &[u32],
    state: &Residents,
) -> Residents {
    let up = |name, words: &[u32]| gpu.upload(name, words).unwrap();
    let (requests, lists, tables) =
        (gpu.upload("requests", requests).unwrap(), up("lists", lists), up("tables", tables));
    let slots = gpu.upload("slots", &state.slots).unwrap();
    let (places, fetches, pages) =
        (up("places", &state.places), up("fetches", &state.fetches), up("pages", &state.pages));
    let mut pass = Pass::new("residency");
    let bindings = [
        (&requests).into(),
        (&lists).into(),
        (&tables).into(),
        (&places).into(),
        (&slots).into(),
        (&fetches).into(),
        (&pages).into(),
    ];
    let variant = residency::variant(&SHAPE, PAGES * SHAPE.block_size);
    dispatch(gpu, &mut pass, &variant, params, &bindings);
    let reads = (pass.read(&places, 0..places.len()), pass.read(&slots, 0..slots.len()));
    let more = (pass.read(&fetches, 0..fetches.len()), pass.read(&pages, 0..pages.len()));
    let done = gpu.submit(pass).unwrap().wait().unwrap();
    Residents {
        places: done.get(reads.0),
        slots: done.get(reads.1),
        fetches: done.get(more.0),
        pages: done.get(more.1),
    }
}

/// Block by slot of one head.
fn held(state: &Residents, head: usize) -> BTreeMap<u32, u32> {
    let blocks = state.places.iter().skip(head).step_by(HEADS).zip(0..);
    blocks.filter(|(place, _)| **place > 0).map(|(place, block)| (place - 2, block)).collect()
}

/// Checks the invariants of `after` for a head, whoever computed it.
fn check(
    call: &Call,
    params: &ResidencyParams,
    tables: &[u32],
    head: usize,
    before: &Residents,
    after: &Residents,
) {
    let words = HEADER + 2 * SLOTS as usize;
    let [was, is] = [before, after].map(|state| held(state, head));
    let asked: BTreeSet<u32> = call.entries(head).iter().map(|entry| tables[*entry]).collect();
    let resident: BTreeSet<u32> = was.values().copied().collect();
    let missing: BTreeSet<u32> = asked.difference(&resident).copied().collect();
    let fetches = &after.fetches[head * words..][..words];
    let pairs: BTreeMap<u32, u32> =
        fetches[HEADER..].chunks_exact(2).take(fetches[0] as usize).map(|pair| (pair[1], pair[0])).collect();

    // Places and slots agree; a block has one place.
    let mut blocks: Vec<u32> = is.values().copied().collect();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), is.len());
    for (slot, block) in &is {
        assert_eq!(after.slots[*slot as usize * HEADS + head][0], block + 1, "slot {slot}");
    }
    // What is fetched was missing, and nothing else changes its place.
    assert_eq!(pairs.len(), fetches[0] as usize, "two pages for one slot");
    for (slot, block) in &pairs {
        assert!(missing.contains(block) && is[slot] == *block);
    }
    for (slot, block) in is.iter().filter(|(slot, _)| !pairs.contains_key(slot)) {
        assert_eq!(was.get(slot), Some(block));
    }
    assert_eq!(is.len(), was.iter().filter(|(slot, _)| !pairs.contains_key(slot)).count() + pairs.len());
    let calls = SLOTS as usize * HEADS + head;
    let now = before.slots[calls][1] + 1;
    assert_eq!(after.slots[calls], [0, now], "calls so far");
    // Slots are taken from the oldest on, never those of a page that is asked for.
    let age = |slot: u32| {
        let [held, used] = before.slots[slot as usize * HEADS + head];
        let asked = was.get(&slot).is_some_and(|block| asked.contains(block));
        if asked || (held > 0 && used == now) {
            0
        } else if held == 0 {
            255
        } else {
            (now - used).min(255)
        }
    };
    let free = (0..SLOTS).filter(|slot| age(*slot) > 0).count();
    assert_eq!(pairs.len(), missing.len().min(params.max_fetches as usize).min(free));
    let youngest = pairs.keys().map(|slot| age(*slot)).min().unwrap_or(255);
    let oldest = (0..SLOTS).filter(|slot| !pairs.contains_key(slot)).map(age).max().unwrap_or(0);
    assert!(pairs.is_empty() || (youngest >= oldest && youngest > 0), "{youngest} was taken, {oldest} left");
    // Every page that is asked for and attended is told where it is.
    for entry in call.entries(head).into_iter().filter(|_| !call.wish) {
        let page = after.pages[entry * HEADS + head];
        assert_eq!(page as usize % HEADS, head);
        assert_eq!(is.get(&(page / SHAPE.num_kv_heads)), Some(&tables[entry]));
    }
    let before = &before.fetches[head * words..][..HEADER];
    let hits = fetches[1] - before[1];
    assert_eq!(fetches[2] - before[2], u32::try_from(missing.len()).unwrap());
    assert!(hits as usize >= asked.len() - missing.len());
    assert_eq!(fetches[3] - before[3], u32::try_from(missing.len() - pairs.len()).unwrap());
}

proptest! {
    #![proptest_config(cases(3))]

    #[test]
    fn a_missing_page_gets_a_place(pages in 1u32..=16, seed: u64) {
        if let Some(gpu) = gpu() {
            assert_draw_passes(gpu, residency::variant(&SHAPE, pages * SHAPE.block_size), seed);
        }
    }
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn pages_get_places(
        calls in prop::collection::vec(call(), 1..12),
        shared in 0usize..16,
        forgotten in prop::collection::vec((0usize..12, 0..BLOCKS), 0..4),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        // The sequences share their first blocks.
        let own = |n: usize| if n % 32 < shared { n % 32 } else { n };
        let tables: Vec<u32> = (0..64).map(|n| u32::try_from(own(n)).unwrap()).collect();
        let empty = Residents {
            places: vec![0; BLOCKS as usize * HEADS],
            slots: vec![[0, 0]; residency::slots_len(&SHAPE, SLOTS)],
            fetches: vec![0; residency::fetches_len(&SHAPE, SLOTS)],
            pages: vec![0; tables.len() * HEADS],
        };
        let (mut device, mut reference) = (empty.clone(), empty);
        for (index, call) in calls.iter().enumerate() {
            let params = call.params();
            let requests = [[0, call.lens[0], 0, 0], [1, call.lens[1], 32, 0]];
            let lists = call.words();
            for (_, block) in forgotten.iter().filter(|(at, _)| *at == index) {
                for state in [&mut device, &mut reference] {
                    state.places[*block as usize * HEADS..][..HEADS].fill(0);
                }
            }
            let after = run(gpu, &params, &requests, &lists, &tables, &device);
            let mut wanted = reference.clone();
            cpu::residency::residency(&params, PAGES, &requests, &lists, &tables, &mut wanted);
            for head in 0..HEADS {
                check(call, &params, &tables, head, &device, &after);
                check(call, &params, &tables, head, &reference, &wanted);
            }
            (device, reference) = (after, wanted);
        }
    }
}
