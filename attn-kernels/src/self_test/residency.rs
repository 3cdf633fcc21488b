//! Cases of `residency` and `fetch_pages` with one possible result, and timed cases.

use super::hostile::{self, Indices, Order};
use super::layer::Layer;
use super::options::Lists;
use super::spec::{SPREAD, Size};
use super::{Case, Spec, count, filled};
use crate::cpu;
use crate::cpu::residency::Residents;
use crate::kernel::fetch_pages::FetchPagesParams;
use crate::kernel::residency::{self, HEADER, ResidencyParams};
use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::{Variant, slot};

const HEADS: u32 = 2;
/// Number of slots per head, into which pages are fetched.
const SLOTS: u32 = 8;

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed(variant, size)];
    }
    // Two lists that meet in a page; more slots than pages of a block, the last of them free. At most one page a head is missing,
    // so that no two could change places.
    let pages = filled(variant, slot::PAGES);
    let (block_size, num_slots) = (16, pages.max(4) + 4);
    let params = ResidencyParams {
        first_request: 1,
        requests: 2,
        num_kv_heads: HEADS,
        list_stride: 3,
        block_size,
        first_page: 0,
        num_pages: 2 * pages,
        num_slots,
        max_fetches: 4,
        write_pages: 1,
    };
    // Nothing is asked of the first list. The others see one page of their second block.
    let lists: Vec<u32> = (0..3 * HEADS).flat_map(|_| [2, 0, 1]).collect();
    let len = (pages + 1) * block_size - spec.number(3, 0..=block_size - 1);
    let blocks = pages + 1;
    let requests = [[0, 1, 0, 0], [1, len, 1, 0], [2, len, 1, 0]];
    let tables: Vec<u32> = (0..=blocks).rev().collect();
    let mut state = Residents {
        places: vec![0; ((blocks + 1) * HEADS) as usize],
        slots: vec![[0, num_slots]; residency::slots_len(&shape(block_size), num_slots)],
        fetches: vec![0; residency::fetches_len(&shape(block_size), num_slots)],
        pages: vec![77; (tables.len()) * HEADS as usize],
    };
    // All but one page of the lists is on the device, and every slot was used at another time.
    for head in 0..HEADS {
        for slot in 0..num_slots {
            let block = if slot + 1 < blocks { slot } else { 0 };
            let held = slot + 1 < blocks;
            let at = (slot * HEADS + head) as usize;
            state.slots[at] = [u32::from(held) * (block + 1), num_slots - slot];
            if held {
                state.places[(block * HEADS + head) as usize] = slot + 2;
            }
        }
        // Whatever is free is young, but for the last slot.
        for slot in pages..num_slots - 1 {
            state.slots[(slot * HEADS + head) as usize] = [1, num_slots + 1];
        }
    }
    let before = state.clone();
    cpu::residency::residency(&params, pages, &requests, &lists, &tables, &mut state);
    let case = Case::new("one page is missing", variant, &params)
        .binding(&requests)
        .binding(&lists)
        .binding(&tables)
        .words(&before.places, &state.places)
        .words(&before.slots, &state.slots)
        .words(&before.fetches, &state.fetches)
        .words(&before.pages, &state.pages);
    let mut cases = vec![case];
    cases.extend(any_lists(&cases[0], &before, [blocks + 1, num_slots]));
    cases
}

/// Makes the timed case, whose lists hold a fraction of each sequence's blocks. The first run fetches pages, and all
/// later runs find them resident.
fn timed(variant: &Variant, size: &Size) -> Case {
    let &Size { cache, batch, context, select_block, density, .. } = size;
    let kv_heads = cache.num_kv_heads;
    let Layer { tables, table_of, .. } = Layer::empty(cache, &size.lens(), 1);
    let lists =
        Lists::share(std::iter::repeat_n(context, (batch * kv_heads) as usize), select_block, density);
    let num_pages = (lists.stride - 1) * filled(variant, slot::PAGES);
    let num_slots = num_pages * batch;
    let params = ResidencyParams {
        first_request: 0,
        requests: batch,
        num_kv_heads: kv_heads,
        list_stride: lists.stride,
        block_size: cache.block_size,
        first_page: 0,
        num_pages,
        num_slots,
        max_fetches: num_slots,
        write_pages: 1,
    };
    let requests: Vec<_> = (0..).zip(table_of).map(|(group, table)| [group, context, table, 0]).collect();
    let slots = residency::slots_len(&cache, num_slots);
    let places = vec![0_u32; (count(&tables) + 2) as usize * kv_heads as usize];
    let bytes = 32.0 * f64::from(num_slots * kv_heads) + 8.0 * slots as f64;
    Case::new("pages that are there", variant, &params)
        .costs(bytes, 0.0)
        .binding(&requests)
        .binding(&lists.lists)
        .binding(&tables)
        .binding(&places)
        .binding(&vec![[0_u32; 2]; slots])
        .binding(&vec![0_u32; residency::fetches_len(&cache, num_slots)])
        .binding(&places)
}

/// Makes cases with arbitrary list entries, which no kernel produces. They check that the state kept between calls
/// stays usable.
fn any_lists(case: &Case, before: &Residents, [num_blocks, num_slots]: [u32; 2]) -> Vec<Case> {
    let below = |limits: Vec<u32>, none| Indices { order: Order::Different, stride: 1, limits, none };
    let slots = before.slots.iter().flat_map(|_| [num_blocks + 1, u32::MAX]).collect();
    // Pages that got no slot are noted with their table entry.
    let pair = [num_blocks, num_slots.max(count(&before.pages))];
    let head = [num_slots + 1, u32::MAX, u32::MAX, u32::MAX].into_iter();
    let fetches = (0..HEADS).flat_map(|_| head.clone().chain((0..num_slots).flat_map(|_| pair))).collect();
    let wants = [
        (3, below(vec![num_slots + 2; before.places.len()], None)),
        (4, below(slots, None)),
        (5, below(fetches, None)),
        (6, below(vec![num_slots * HEADS; before.pages.len()], Some(before.pages[0]))),
    ];
    let mut cases = hostile::cases(case, &[1], &wants);
    // Blocks that there are and some that there are not, in any order, more than there are slots.
    let mut near = cases[0].clone();
    near.what = "lists in any order";
    for (i, word) in (0..).zip(&mut near.buffers[1]) {
        *word = hostile::mix(i) % (num_blocks + 3);
    }
    cases.push(near);
    cases
}

pub(crate) fn fetch_cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed_fetch(variant, size)];
    }
    let shape = shape(16);
    let touched = [[8, 9], [6, 1], [3, 2]];
    let salt = spec.number(0, 0..=1 << 20);
    let params = FetchPagesParams {
        workgroups: spec.number(3, 1..=9),
        touched: 3,
        // Blocks 0 and 9 lie elsewhere.
        first_block: 1,
        num_blocks: 8,
        ..FetchPagesParams::new(&shape, SLOTS)
    };
    // Block 8 is nowhere, 6 has a slot for one head and is read from another place, 3 waits for a slot.
    let mut places = vec![0; 10 * HEADS as usize];
    places[6 * HEADS as usize + 1] = 4;
    places[3 * HEADS as usize] = 1;
    let mut fetches = vec![0; residency::fetches_len(&shape, SLOTS)];
    // Five pages for the first head, none for the other, whose list holds what an earlier call left.
    fetches[0] = 5;
    for (n, pair) in [[9, 0], [1, 7], [4, 2], [5, 3], [0, 5]].into_iter().enumerate() {
        fetches[HEADER + 2 * n..][..2].copy_from_slice(&pair);
    }
    let quads = |pages: u32, other: u32| -> Vec<[u32; 4]> {
        let words = (0..pages * HEADS * params.page_quads * 4)
            .map(|word| (word + other + salt).wrapping_mul(0x9e37_79b9));
        words.collect::<Vec<u32>>().as_chunks().0.to_vec()
    };
    let (host_k, host_v, k, v) = (quads(8, 1), quads(8, 2), quads(SLOTS, 3), quads(SLOTS, 4));
    let (mut k_after, mut v_after) = (k.clone(), v.clone());
    cpu::fetch_pages::fetch_pages(&params, &fetches, &host_k, (&places, &touched), &mut k_after);
    cpu::fetch_pages::fetch_pages(&params, &fetches, &host_v, (&places, &touched), &mut v_after);
    let case = Case::new("pages of one head", variant, &params)
        .binding(&fetches)
        .binding(&host_k)
        .binding(&host_v)
        .binding(&places)
        .binding(&touched)
        .words(&k, &k_after)
        .words(&v, &v_after);
    vec![case]
}

/// Makes the timed case: it fetches `size.rows` pages of each KV head, out of four times as many blocks.
fn timed_fetch(variant: &Variant, size: &Size) -> Case {
    let &Size { cache, rows: pages, .. } = size;
    let params = FetchPagesParams::new(&cache, pages);
    let mut fetches = vec![0; residency::fetches_len(&cache, pages)];
    for of_head in fetches.chunks_exact_mut(HEADER + 2 * pages as usize) {
        of_head[0] = pages;
        for (pair, slot) in of_head[HEADER..].chunks_exact_mut(2).zip(0..) {
            pair.copy_from_slice(&[slot * SPREAD % (4 * pages), slot]);
        }
    }
    Case::new("pages of the host", variant, &params)
        .costs(4.0 * f64::from(pages) * cache.block_bytes() as f64, 0.0)
        .binding(&fetches)
        .blocks_of(&cache, 4 * pages)
        .blocks_of(&cache, 4 * pages)
        .binding(&vec![0_u32; (4 * pages * cache.num_kv_heads) as usize])
        .binding(&[[0_u32; 2]])
        .blocks_of(&cache, pages)
        .blocks_of(&cache, pages)
}

fn shape(block_size: u32) -> KvShape {
    KvShape { num_kv_heads: HEADS, head_dim: 64, block_size, dtype: KvDtype::F16, layout: KvLayout::Native }
}
