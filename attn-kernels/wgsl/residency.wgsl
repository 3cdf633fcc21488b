// Gives the pages that lists of blocks name a place on the device, which holds fewer than there are: finds what is there
// already, and slots for the rest. A page is what one KV head keeps of a block; every head has slots of its own.
//   requests [n] vec4<u32>: list group, KV length, first entry of its block table, 0
//   lists    [groups, num_kv_heads] of list_stride u32: count, then that many ascending blocks of PAGES pages
//   tables   blocks of the pool
//   places   [num_blocks, num_kv_heads] u32: slot + 2 of a page that is on the device, 0 of the others
//   slots    [num_slots + 1, num_kv_heads] vec2<u32>: block + 1 that it holds, or 0; the call that last used it; in the last row
//            0; the number of calls so far
//   fetches  [num_kv_heads] of 4 + 2 * num_slots u32: pages to fetch, and since the start hits, misses and drops; then
//            (block, slot) of each page to fetch
//   pages    [entries of tables, num_kv_heads] u32: where pages of the lists are, for pages_heads
// num_pages pages of each list count, from first_page on in its order. A missing page takes the slot whose last use is the
// oldest (all uses 255 calls ago or more are alike); slots used by this call are never taken. At most max_fetches missing
// pages are
// fetched and the others dropped: with `pages` asked for none may be, so the host keeps all lists within the slots.
// Whatever the lists hold, nothing outside of the buffers is read or written.
// One workgroup a KV head. Which of equal slots is taken is left open. Bytes moved: 32 a page of a list, 8 a slot.
// CPU reference: src/cpu/residency.rs
#import PAGES = 1

struct ResidencyParams {
    first_request: u32,
    requests: u32,
    num_kv_heads: u32,
    list_stride: u32,
    block_size: u32,
    first_page: u32,
    num_pages: u32,
    num_slots: u32,
    max_fetches: u32,
    write_pages: u32, // 0: only a wish, nothing attends the lists yet
}

@group(0) @binding(0) var<uniform> params: ResidencyParams;
@group(0) @binding(1) var<storage, read> requests: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> lists: array<u32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> places: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> slots: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> fetches: array<u32>;
@group(0) @binding(7) var<storage, read_write> pages: array<u32>;

const WG: u32 = 256u;
const AGES: u32 = 256u;
// Loads of a lane that are on their way together.
const AT_ONCE: u32 = 4u;
// A place while its page is missing and has no slot yet.
const CLAIMED: u32 = 1u;
const FIRST: u32 = 2u;

// Number of this call, from 1 on.
var<private> now: u32;

var<workgroup> missing: atomic<u32>;
var<workgroup> hits: atomic<u32>;
// Whether lists share a page that is missing.
var<workgroup> shared_page: atomic<u32>;
// Victims older than the cut, and at it.
var<workgroup> older: atomic<u32>;
var<workgroup> equal: atomic<u32>;
var<workgroup> ages: array<atomic<u32>, AGES>;
// Slots of an age or more.
var<workgroup> sums: array<u32, AGES>;
var<workgroup> cut: u32;
var<workgroup> demand: vec2<u32>;

@compute @workgroup_size(WG)
fn residency(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let base = head * (4u + 2u * params.num_slots);
    let calls = params.num_slots * params.num_kv_heads + head;
    now = slots[calls].y + 1u;
    // Workgroup memory starts with anything.
    atomicStore(&ages[lane], 0u);
    if (lane == 0u) {
        atomicStore(&missing, 0u);
        atomicStore(&hits, 0u);
        atomicStore(&shared_page, 0u);
        atomicStore(&older, 0u);
        atomicStore(&equal, 0u);
        cut = 0u;
    }
    workgroupBarrier();
    find(head, base, lane);
    storageBarrier();
    workgroupBarrier();
    if (lane == 0u) {
        demand = vec2(min(atomicLoad(&missing), params.num_slots), atomicLoad(&shared_page));
    }
    let count = workgroupUniformLoad(&demand);
    var served = 0u;
    if (count.x > 0u) {
        served = serve(head, base, count.x, lane);
    }
    if (lane == 0u) {
        fetches[base] = served;
        fetches[base + 1u] += atomicLoad(&hits);
        fetches[base + 2u] += atomicLoad(&missing);
        fetches[base + 3u] += atomicLoad(&missing) - served;
        slots[calls].y = now;
    }
    if (params.write_pages * count.y == 1u) {
        storageBarrier();
        workgroupBarrier();
        tell(head, lane);
    }
}

// Pages of a list that count, as a range in its order; where its blocks begin.
fn range_of(request: vec4<u32>, head: u32) -> vec3<u32> {
    let list = (request.x * params.num_kv_heads + head) * params.list_stride;
    let pages = min(lists[list], params.list_stride - 1u) * PAGES;
    return vec3(params.first_page, min(params.first_page + params.num_pages, pages), list + 1u);
}

fn page_at(range: vec3<u32>, i: u32) -> u32 {
    return lists[range.z + i / PAGES] * PAGES + i % PAGES;
}

// Goes through all pages that are asked for: marks those on the device as used and tells where they are, notes the others.
fn find(head: u32, base: u32, lane: u32) {
    var used = 0u;
    for (var a = 0u; a < params.requests; a++) {
        let request = requests[params.first_request + a];
        let range = range_of(request, head);
        let last = (max(request.y, 1u) - 1u) / params.block_size;
        for (var first = range.x + lane; first < range.y; first += AT_ONCE * WG) {
            var found: array<u32, AT_ONCE>;
            for (var j = 0u; j < AT_ONCE; j++) {
                found[j] = page_at(range, min(first + j * WG, range.y - 1u));
            }
            var at: array<u32, AT_ONCE>;
            for (var j = 0u; j < AT_ONCE; j++) {
                at[j] = tables[request.z + min(found[j], last)] * params.num_kv_heads + head;
            }
            var place: array<u32, AT_ONCE>;
            for (var j = 0u; j < AT_ONCE; j++) {
                place[j] = atomicLoad(&places[at[j]]);
            }
            for (var j = 0u; j < AT_ONCE; j++) {
                if (first + j * WG < range.y && request.y > 0u && found[j] <= last) {
                    used += look(at[j], place[j], request.z + found[j], head, base);
                }
            }
        }
    }
    atomicAdd(&hits, used);
}

// A page of table entry `entry`: 1 if it is on the device or noted already, else it is noted.
fn look(at: u32, held: u32, entry: u32, head: u32, base: u32) -> u32 {
    var place = held;
    if (place == 0u) {
        place = atomicMax(&places[at], CLAIMED);
    }
    if (place == 0u) {
        let n = atomicAdd(&missing, 1u);
        if (n < params.num_slots) {
            fetches[base + 4u + 2u * n] = at / params.num_kv_heads;
            fetches[base + 5u + 2u * n] = entry;
        } else {
            atomicStore(&places[at], 0u);
        }
        return 0u;
    }
    if (place == CLAIMED) {
        atomicStore(&shared_page, 1u);
    } else {
        slots[(place - FIRST) * params.num_kv_heads + head].y = now;
        put_page(entry, place - FIRST, head);
    }
    return 1u;
}

fn put_page(entry: u32, slot: u32, head: u32) {
    if (params.write_pages == 1u) {
        pages[entry * params.num_kv_heads + head] = slot * params.num_kv_heads + head;
    }
}

// Tells where all pages are: those that lists share were noted for one of them.
fn tell(head: u32, lane: u32) {
    for (var a = 0u; a < params.requests; a++) {
        let request = requests[params.first_request + a];
        let range = range_of(request, head);
        let end = (request.y + params.block_size - 1u) / params.block_size;
        for (var i = range.x + lane; i < range.y; i += WG) {
            let page = page_at(range, i);
            if (page < end) {
                let place = atomicLoad(&places[tables[request.z + page] * params.num_kv_heads + head]);
                put_page(request.z + page, max(place, FIRST) - FIRST, head);
            }
        }
    }
}

// 0 for what was used now, 255 for what was never used or long ago.
fn age_of(slot: vec2<u32>) -> u32 {
    return select(min(now - slot.y, AGES - 1u), AGES - 1u, slot.x == 0u);
}

// Ages of AT_ONCE slots from `first` on, WG apart; 0 behind the last.
fn ages_from(first: u32, head: u32) -> array<u32, AT_ONCE> {
    var held: array<vec2<u32>, AT_ONCE>;
    for (var j = 0u; j < AT_ONCE; j++) {
        held[j] = slots[min(first + j * WG, params.num_slots - 1u) * params.num_kv_heads + head];
    }
    var all: array<u32, AT_ONCE>;
    for (var j = 0u; j < AT_ONCE; j++) {
        all[j] = select(0u, age_of(held[j]), first + j * WG < params.num_slots);
    }
    return all;
}

// Gives up to `max_fetches` of `count` missing pages the oldest slots; returns how many.
fn serve(head: u32, base: u32, count: u32, lane: u32) -> u32 {
    for (var first = lane; first < params.num_slots; first += AT_ONCE * WG) {
        var all = ages_from(first, head);
        for (var j = 0u; j < AT_ONCE; j++) {
            // Slots used now are nobody's.
            if (all[j] > 0u) {
                atomicAdd(&ages[all[j]], 1u);
            }
        }
    }
    workgroupBarrier();
    sums[lane] = atomicLoad(&ages[lane]);
    for (var step = 1u; step < AGES; step *= 2u) {
        workgroupBarrier();
        let more = select(0u, sums[min(lane + step, AGES - 1u)], lane + step < AGES);
        workgroupBarrier();
        sums[lane] += more;
    }
    workgroupBarrier();
    let served = min(min(count, params.max_fetches), sums[1]);
    let beyond = select(0u, sums[min(lane + 1u, AGES - 1u)], lane + 1u < AGES);
    if (lane > 0u && sums[lane] >= served && beyond < served) {
        cut = lane;
    }
    workgroupBarrier();
    let above = select(0u, sums[min(cut + 1u, AGES - 1u)], cut + 1u < AGES);
    for (var first = lane; first < params.num_slots && served > 0u; first += AT_ONCE * WG) {
        var all = ages_from(first, head);
        for (var j = 0u; j < AT_ONCE; j++) {
            if (all[j] > cut) {
                take(head, base, atomicAdd(&older, 1u), first + j * WG);
            } else if (all[j] == cut && all[j] > 0u) {
                let n = above + atomicAdd(&equal, 1u);
                if (n < served) {
                    take(head, base, n, first + j * WG);
                }
            }
        }
    }
    for (var n = served + lane; n < count; n += WG) {
        atomicStore(&places[fetches[base + 4u + 2u * n] * params.num_kv_heads + head], 0u);
    }
    return served;
}

// Puts missing page `n` into slot `s`.
fn take(head: u32, base: u32, n: u32, s: u32) {
    let at = s * params.num_kv_heads + head;
    let held = slots[at].x;
    if (held > 0u) {
        // A page that was forgotten may have another place by now.
        let place = (held - 1u) * params.num_kv_heads + head;
        if (atomicLoad(&places[place]) == s + FIRST) {
            atomicStore(&places[place], 0u);
        }
    }
    let block = fetches[base + 4u + 2u * n];
    put_page(fetches[base + 5u + 2u * n], s, head);
    fetches[base + 5u + 2u * n] = s;
    slots[at] = vec2(block + 1u, now);
    atomicStore(&places[block * params.num_kv_heads + head], s + FIRST);
}
