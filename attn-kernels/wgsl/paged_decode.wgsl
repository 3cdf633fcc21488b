// Attention of one query row over its paged KV, one partition of keys a workgroup, GROUP query heads together. A workgroup
// goes through its partition 256 keys at a time with an online softmax.
//   q        rows of q_stride f32, [num_heads, head_dim] from 0
//   rows     [first_row + n] vec4<u32>: row of q and out, KV length, first entry of its block table, first key that it sees
//   tables   physical block ids: see pages_shared
//   partial  [n, num_heads, max_partitions, head_dim] f32, unnormalised;  stats the same without head_dim: (max, sum)
//   slopes   of ALiBi: see logit_alibi
//   selected lists of blocks or tokens, [n, num_kv_heads] from list first_row * num_kv_heads on: see context_blocks
// Partitions of params.partition_size keys go through the keys in the order of `context`, from the one with the first key
// that the row sees: beside their size a row's arithmetic depends on its own length, first key and list alone, and a list
// of all blocks gives the bits of none.
// With one partition and no reduce pass `partial` is the output itself, normalised.
// A dispatch may do a part of the keys, num_keys from first_key on, which partitions of no row reach across.
// Grid: (partitions times head groups of a KV head, KV heads, n): groups that read the same keys stand side by side.
// Bytes moved: keys and values of a row once for each GROUP heads of a KV head, queries once a partition, and
// 4 * head_dim + 8 for each head and partition.
// CPU reference: src/cpu/paged_decode.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import GROUP = 1
// Values in flight a lane, and chunks of each of its keys.
#import VALUES_AHEAD = 8
#import CHUNKS_AHEAD = 1
#import kv = kv_f16
#import keys = keys_apart
#import trips = trips_known
#import quad_reduce
#import decode_part
#import decode_lanes
#import pages = pages_shared
#import places = places_blocks
#import SELECTED = 8
#import context = context_full
#import SLOPES = 8
#import logit = logit_plain

// Keys of a step. It starts at a block: TILE is a multiple of every block size.
const TILE: u32 = 256u;
const WG: u32 = TILE / 2u;
const SPANS: u32 = 1u;
// Lanes of one token in the value phase own eight dimensions each; as many tokens as fit go side by side.
const TOKEN_GROUPS: u32 = WG / CHUNKS;
// No lane goes past the step.
const EVEN: bool = TILE % (TOKEN_GROUPS * VALUES_AHEAD) == 0u;

// Heads side by side, so that one load serves all of them. After the last step, sums of lanes.
var<workgroup> weights: array<vec4<f32>, TILE>;
// Places of the keys of this step and of the next one, alternately; see places_blocks.
var<workgroup> places: array<u32, 2u * PLACES>;

// Keys of a step that count, from its first one on. No others are read, so unused slots may hold anything.
struct Keys { first: u32, begin: u32, end: u32, places: u32 }

@compute @workgroup_size(WG)
fn paged_decode(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let part = part_of(group);
    if (part.begin >= part.end) {
        store_nothing(destination_of(group, part), lane.index);
        return;
    }
    var at = part.begin / TILE * TILE;
    find_places(lane.index, part, at, 0u);
    load_q(group, lane.index);
    var state: State;
    state.top = vec4(LOWEST);
    var half = 0u;
    for (; at < part.end; at += TILE) {
        let keys = Keys(at, max(at, part.begin) - at, min(part.end - at, TILE), half * PLACES);
        half = 1u - half;
        state = step(lane, part, keys, state, half * PLACES);
    }
    add_up(lane, destination_of(group, part), state);
}

// Physical block and head of the key at `index` in the order of attention; of no meaning past the last one.
fn block_of(part: Part, index: u32) -> u32 {
    if (index >= part.end) {
        return 0u;
    }
    let position = context_position(part.context, index);
    return page_of(part.table + position / BLOCK_SIZE, part.kv_head);
}

// Attends to `keys`, and puts the places of the keys after them at `next`.
fn step(lane: Lane, part: Part, keys: Keys, before: State, next: u32) -> State {
    var state = before;
    let mine = logits_of(lane.index, part, keys);
    let top = max(state.top, reduce_max(max(mine.first, mine.second), lane));
    let shrink = exp(state.top - top);
    state.top = top;
    let key = keys_of(lane.index);
    state.sum = state.sum * shrink + weigh(key.x, keys, mine.first, top) + weigh(key.y, keys, mine.second, top);
    find_places(lane.index, part, keys.first + TILE, next);
    workgroupBarrier();
    #unroll g < GROUP
        state.low[g] *= shrink[g];
        state.high[g] *= shrink[g];
    #end
    return add_values(lane.index, keys, state);
}

// Logits of the two keys of a lane.
struct Logits { first: vec4<f32>, second: vec4<f32> }

fn logits_of(lane: u32, part: Part, keys: Keys) -> Logits {
    let mine = keys_of(lane);
    let read = keys_read(lane, keys.begin, keys.end);
    let first_place = place_of(keys.places, read.x);
    let second_place = place_of(keys.places, read.y);
    let at = keys_at(k_at(first_place.block, 0u, first_place.offset), k_at(second_place.block, 0u, second_place.offset));
    var s: Logits;
    for (var first = 0u; first < trips(CHUNKS, part.end); first += CHUNKS_AHEAD) {
        var k: array<KeyChunks, CHUNKS_AHEAD>;
        #unroll i < CHUNKS_AHEAD
            k[i] = keys_load(at, first + i);
        #end
        #unroll i < CHUNKS_AHEAD
            let chunk = first + i;
            #unroll g < GROUP
                let q_low = q_tile[(g * CHUNKS + chunk) * 2u];
                let q_high = q_tile[(g * CHUNKS + chunk) * 2u + 1u];
                s.first[g] += dot(q_low, kv_low(k[i].first)) + dot(q_high, kv_high(k[i].first));
                s.second[g] += dot(q_low, kv_low(k[i].second)) + dot(q_high, kv_high(k[i].second));
            #end
        #end
    }
    if (KV_ZERO != 0.0) {
        let zero = vec4(q_zero[0], q_zero[1], q_zero[2], q_zero[3]);
        s.first -= zero;
        s.second -= zero;
    }
    s.first *= k_factor(first_place.block, first_place.offset);
    s.second *= k_factor(second_place.block, second_place.offset);
    let position0 = context_position(part.context, keys.first + read.x);
    let position1 = context_position(part.context, keys.first + read.y);
    #unroll g < GROUP
        s.first[g] = logit(s.first[g], 1.0, part.head0 + g, position0, part.position);
        s.second[g] = logit(s.second[g], 1.0, part.head0 + g, position1, part.position);
    #end
    s.first = select(vec4(LOWEST), s.first, counts(mine.x, keys));
    s.second = select(vec4(LOWEST), s.second, counts(mine.y, keys));
    return s;
}

fn counts(key: u32, keys: Keys) -> bool {
    return key >= keys.begin && key < keys.end;
}

// Leaves what scales the value of `key` in `weights`; returns its part of the sum.
fn weigh(key: u32, keys: Keys, logit: vec4<f32>, top: vec4<f32>) -> vec4<f32> {
    let p = select(vec4(0.0), exp(logit - top), counts(key, keys));
    let place = place_of(keys.places, clamp(key, keys.begin, keys.end - 1u));
    weights[key] = p * v_factor(place.block, place.offset);
    return p;
}

// sum[g] += weights[t][g] * v[t].
fn add_values(lane: u32, keys: Keys, before: State) -> State {
    var state = before;
    let chunk = lane % CHUNKS;
    let token_group = lane / CHUNKS;
    if (token_group >= TOKEN_GROUPS) {
        return state;
    }
    for (var first = token_group; first < keys.end; first += TOKEN_GROUPS * VALUES_AHEAD) {
        var v: array<kv_chunk, VALUES_AHEAD>;
        #unroll i < VALUES_AHEAD
            // Keys that count stand in for the others, whose weight is zero.
            let key = clamp(first + i * TOKEN_GROUPS, keys.begin, keys.end - 1u);
            let place = place_of(keys.places, key);
            v[i] = v_load(v_at(place.block, chunk, place.offset));
        #end
        #unroll i < VALUES_AHEAD
            let key = first + i * TOKEN_GROUPS;
            let p = select(vec4(0.0), weights[min(key, TILE - 1u)], EVEN || key < TILE);
            let low = kv_low(v[i]) - KV_ZERO;
            let high = kv_high(v[i]) - KV_ZERO;
            #unroll g < GROUP
                state.low[g] = fma(vec4(p[g]), low, state.low[g]);
                state.high[g] = fma(vec4(p[g]), high, state.high[g]);
            #end
        #end
    }
    return state;
}

// Adds the lanes up and stores the partition.
fn add_up(lane: Lane, dest: Destination, state: State) {
    // The barrier of the sum also ends the reading of `weights`.
    let sum = reduce_add(state.sum, lane);
    #unroll g < GROUP
        weights[lane.index * 2u] = state.low[g];
        weights[lane.index * 2u + 1u] = state.high[g];
        workgroupBarrier();
        if (lane.index < CHUNKS * 2u) {
            var weighted = vec4(0.0);
            for (var i = 0u; i < trips(TOKEN_GROUPS, lane.index); i++) {
                weighted += weights[i * CHUNKS * 2u + lane.index];
            }
            store(dest, g, lane.index, weighted, state.top[g], sum[g]);
        }
        workgroupBarrier();
    #end
}
