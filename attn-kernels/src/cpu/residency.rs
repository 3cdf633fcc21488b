//! Reference of `residency`.

use crate::kernel::residency::{HEADER, ResidencyParams};

/// State that `residency` keeps between calls, and its outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Residents {
    /// Places of pages on the device, `[num_blocks, num_kv_heads]`: slot + 2, or 0 for a page without a slot.
    pub places: Vec<u32>,
    /// Contents of slots, `[num_slots + 1, num_kv_heads]`: block + 1, or 0 for an empty slot, and the number of the
    /// call that last used the slot. The last row has 0 and the number of calls.
    pub slots: Vec<[u32; 2]>,
    /// Pages to fetch and counters, `[num_kv_heads, 4 + 2 * num_slots]`, as the kernel writes them.
    pub fetches: Vec<u32>,
    /// Slots of the pages of the lists, `[entries of tables, num_kv_heads]`.
    pub pages: Vec<u32>,
}

/// Runs one call over lists of blocks of `pages_per_block` pages. Missing pages take the oldest slots, and of equally
/// old slots those of the lowest numbers first; the kernel may use another order.
pub fn residency(
    params: &ResidencyParams,
    pages_per_block: u32,
    requests: &[[u32; 4]],
    lists: &[u32],
    tables: &[u32],
    state: &mut Residents,
) {
    for head in 0..params.num_kv_heads as usize {
        let entries = entries(params, pages_per_block, requests, lists, head);
        of_head(params, head, &entries, tables, state);
    }
}

/// Returns the entries of `tables` that the lists of a head name, in the lists' order.
fn entries(
    params: &ResidencyParams,
    pages_per_block: u32,
    requests: &[[u32; 4]],
    lists: &[u32],
    head: usize,
) -> Vec<usize> {
    let mut entries = Vec::new();
    for [group, len, table, _] in &requests[params.first_request as usize..][..params.requests as usize] {
        let list = (*group as usize * params.num_kv_heads as usize + head) * params.list_stride as usize;
        let blocks = &lists[list + 1..][..lists[list] as usize];
        let pages =
            blocks.iter().flat_map(|block| (0..pages_per_block).map(move |i| block * pages_per_block + i));
        let some = pages.skip(params.first_page as usize).take(params.num_pages as usize);
        entries
            .extend(some.filter(|page| page * params.block_size < *len).map(|page| (table + page) as usize));
    }
    entries
}

fn of_head(params: &ResidencyParams, head: usize, entries: &[usize], tables: &[u32], state: &mut Residents) {
    let heads = params.num_kv_heads as usize;
    let place = |block: u32| block as usize * heads + head;
    let calls = params.num_slots as usize * heads + head;
    let now = state.slots[calls][1] + 1;
    state.slots[calls][1] = now;
    let mut missing: Vec<u32> = Vec::new();
    let mut hits = 0;
    for block in entries.iter().map(|entry| tables[*entry]) {
        match state.places[place(block)] {
            0 if !missing.contains(&block) => missing.push(block),
            0 => hits += 1,
            slot => {
                hits += 1;
                state.slots[(slot as usize - 2) * heads + head][1] = now;
            }
        }
    }
    let age = |[held, used]: [u32; 2]| if held == 0 { 255 } else { (now - used).min(255) };
    let mut free: Vec<usize> = (0..params.num_slots as usize).collect();
    free.retain(|slot| age(state.slots[slot * heads + head]) > 0);
    free.sort_by_key(|slot| std::cmp::Reverse(age(state.slots[slot * heads + head])));

    let words = HEADER + 2 * params.num_slots as usize;
    let fetches = &mut state.fetches[head * words..][..words];
    let mut served = 0;
    for (block, slot) in missing.iter().zip(free).take(params.max_fetches as usize) {
        let [held, _] = state.slots[slot * heads + head];
        let number = u32::try_from(slot).expect("slots are counted in u32");
        if held > 0 && state.places[place(held - 1)] == number + 2 {
            state.places[place(held - 1)] = 0;
        }
        state.slots[slot * heads + head] = [block + 1, now];
        state.places[place(*block)] = number + 2;
        fetches[HEADER + 2 * served..][..2].copy_from_slice(&[*block, number]);
        served += 1;
    }
    let count = |n: usize| u32::try_from(n).expect("pages are counted in u32");
    fetches[0] = count(served);
    fetches[1] += hits;
    fetches[2] += count(missing.len());
    fetches[3] += count(missing.len() - served);
    for entry in entries.iter().filter(|_| params.write_pages == 1) {
        let slot = state.places[place(tables[*entry])].max(2) - 2;
        state.pages[entry * heads + head] = slot * params.num_kv_heads + count(head);
    }
}
