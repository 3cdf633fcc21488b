// paged_decode for adapters whose subgroups all have SUBGROUP lanes: each subgroup goes through its keys by
// itself, a tile of as many as its lanes have at a time, and what they found is merged at the end. Weights and places
// travel by shuffles, so that no barrier stands between the keys of a partition. Buffers, partitions, grid and bytes moved are
// those of paged_decode.
// CPU reference: src/cpu/paged_decode.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import GROUP = 1
#import SUBGROUP = 32
// Values in flight a lane, and chunks of each of its keys.
#import AHEAD = 8
#import CHUNKS_AHEAD = 1
#import kv = kv_f16
// Keys of a lane in a tile.
#import KEYS = 1
// Times eight dimensions that a lane owns: more than one if a key has more than its subgroup has lanes.
#import SPANS = 1
#import keys = lane_key
#import trips = trips_known
#import decode_part
#import decode_lanes
#import queries = queries_tile
#import pages = pages_shared
#import SELECTED = 8
#import context = context_full
#import SLOPES = 8
#import logit = logit_plain

#import WG = 128
const SUBGROUPS: u32 = WG / SUBGROUP;
const TILE: u32 = SUBGROUP * KEYS;
const_assert SUBGROUP * SPANS >= CHUNKS;
// In the value phase lanes own dimensions of as many keys as fit side by side; the lanes left over idle.
const SIDES: u32 = max(SUBGROUP / CHUNKS, 1u);
const ROUNDS: u32 = (SUBGROUP + SIDES - 1u) / SIDES;
// No lane goes past the tile.
const EVEN: bool = ROUNDS % AHEAD == 0u && ROUNDS * SIDES == SUBGROUP;
const FIRST_STRIDE: u32 = 1u << firstLeadingBit(max(SIDES, 2u) - 1u);

// Sums of subgroups for two heads in turns, and each subgroup's largest logits and sums of exponentials.
var<workgroup> merged: array<vec4<f32>, 4u * SUBGROUPS * CHUNKS>;
var<workgroup> tops: array<vec4<f32>, SUBGROUPS>;
var<workgroup> sums: array<vec4<f32>, SUBGROUPS>;

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
}

// Weight for each head, and first element of the values, of a lane's keys in a tile.
struct Weighed { weight: array<vec4<f32>, KEYS>, v_at: array<u32, KEYS> }

@compute @workgroup_size(WG)
fn paged_decode_subgroup(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let part = part_of(group);
    if (part.begin >= part.end) {
        store_nothing(destination_of(group, part), lane.index);
        return;
    }
    // All subgroups take as many turns; those past the end count nothing.
    let first = part.begin / TILE * TILE;
    var key0 = first + lane.subgroup * TILE + lane.in_subgroup * KEYS;
    var places = places_of(part, key0);
    load_q(group, lane.index);
    let queries = queries_of(lane.in_subgroup);
    var state: State;
    state.top = vec4(LOWEST);
    for (var at = first; at < part.end; at += SUBGROUPS * TILE) {
        let logits = logits_of(queries, part, key0, places);
        // The next places are on their way while this tile's values are read.
        let next = places_of(part, key0 + SUBGROUPS * TILE);
        state = step(lane, part, key0, places, logits, state);
        places = next;
        key0 += SUBGROUPS * TILE;
    }
    merge(lane, destination_of(group, part), state);
}

// Places of the lane's keys, the first of them at `key0` in the order of attention. Keys that count stand in for the others:
// unused slots may hold anything.
fn places_of(part: Part, key0: u32) -> array<Place, KEYS> {
    var places: array<Place, KEYS>;
    #unroll i < KEYS
        let position = context_position(part.context, clamp(key0 + i, part.begin, part.end - 1u));
        places[i] = Place(page_of(part.table + position / BLOCK_SIZE, part.kv_head), position % BLOCK_SIZE);
    #end
    return places;
}

fn counts(part: Part, key: u32) -> bool {
    return key >= part.begin && key < part.end;
}

// Logits of the lane's keys, LOWEST for those that do not count.
fn logits_of(queries: Queries, part: Part, key0: u32, places: array<Place, KEYS>) -> array<vec4<f32>, KEYS> {
    var logits: array<vec4<f32>, KEYS>;
    let at = k_at(places[0].block, 0u, places[0].offset);
    #unroll s < SPANS
        for (var first = s * SUBGROUP; first < trips(min((s + 1u) * SUBGROUP, CHUNKS), part.end); first += CHUNKS_AHEAD) {
            var k: array<array<kv_chunk, KEYS>, CHUNKS_AHEAD>;
            #unroll i < CHUNKS_AHEAD
                k[i] = keys_load(at, first + i);
            #end
            #unroll i < CHUNKS_AHEAD
                let chunk = first + i;
                #unroll g < GROUP
                    let q_low = query(queries, g, s, chunk, 0u);
                    let q_high = query(queries, g, s, chunk, 1u);
                    #unroll j < KEYS
                        logits[j][g] += dot(q_low, kv_low(k[i][j])) + dot(q_high, kv_high(k[i][j]));
                    #end
                #end
            #end
        }
    #end
    #unroll j < KEYS
        if (KV_ZERO != 0.0) {
            logits[j] -= vec4(q_zero[0], q_zero[1], q_zero[2], q_zero[3]);
        }
        logits[j] *= k_factor(places[j].block, places[j].offset);
        let key = key0 + j;
        let position = context_position(part.context, clamp(key, part.begin, part.end - 1u));
        #unroll g < GROUP
            logits[j][g] = logit(logits[j][g], 1.0, part.head0 + g, position, part.position);
        #end
        logits[j] = select(vec4(LOWEST), logits[j], counts(part, key));
    #end
    return logits;
}

// Attends to a tile, of which `logits` are those of the lane's keys, from `key0` on.
fn step(
    lane: Lane,
    part: Part,
    key0: u32,
    places: array<Place, KEYS>,
    logits: array<vec4<f32>, KEYS>,
    before: State,
) -> State {
    var state = before;
    var most = logits[0];
    #unroll j < KEYS
        most = max(most, logits[j]);
    #end
    let top = max(state.top, subgroupMax(most));
    let shrink = exp(state.top - top);
    state.top = top;
    state.sum *= shrink;
    var mine: Weighed;
    #unroll j < KEYS
        let p = select(vec4(0.0), exp(logits[j] - top), counts(part, key0 + j));
        state.sum += p;
        mine.weight[j] = p * v_factor(places[j].block, places[j].offset);
        mine.v_at[j] = v_at(places[j].block, 0u, places[j].offset);
    #end
    #unroll g < GROUP
        #unroll s < SPANS
            state.low[g * SPANS + s] *= shrink[g];
            state.high[g * SPANS + s] *= shrink[g];
        #end
    #end
    #unroll j < KEYS
        state = add_values(lane.in_subgroup, mine.weight[j], mine.v_at[j], state);
    #end
    return state;
}

// The chunk that the lane owns in a span: none from CHUNKS on, if it is not that of another side.
fn chunk_of(lane: u32, span: u32) -> u32 {
    return lane + span * SUBGROUP;
}

// sum[g] += weight[g] * v over one key of every lane, whose values begin at `at`.
fn add_values(lane: u32, weight: vec4<f32>, at: u32, before: State) -> State {
    var state = before;
    let side = lane / CHUNKS;
    for (var first = 0u; first < trips(ROUNDS, lane); first += AHEAD) {
        var v: array<array<kv_chunk, SPANS>, AHEAD>;
        #unroll i < AHEAD
            let value = subgroupShuffle(at, min((first + i) * SIDES + side, SUBGROUP - 1u));
            #unroll s < SPANS
                v[i][s] = v_load(value + chunk_of(lane, s) % CHUNKS * v_at(0u, 1u, 0u));
            #end
        #end
        #unroll i < AHEAD
            let owner = (first + i) * SIDES + side;
            let p = select(vec4(0.0), subgroupShuffle(weight, min(owner, SUBGROUP - 1u)), EVEN || owner < SUBGROUP);
            #unroll s < SPANS
                let low = kv_low(v[i][s]) - KV_ZERO;
                let high = kv_high(v[i][s]) - KV_ZERO;
                #unroll g < GROUP
                    state.low[g * SPANS + s] = fma(vec4(p[g]), low, state.low[g * SPANS + s]);
                    state.high[g * SPANS + s] = fma(vec4(p[g]), high, state.high[g * SPANS + s]);
                #end
            #end
        #end
    }
    return state;
}

// Adds the lanes of a subgroup up that own the same dimensions: the sum is with the first of them.
fn over_sides(x: vec4<f32>, lane: u32) -> vec4<f32> {
    var sum = x;
    for (var stride = FIRST_STRIDE; stride > 0u; stride /= 2u) {
        let other = subgroupShuffle(sum, min(lane + stride * CHUNKS, SUBGROUP - 1u));
        let side = lane / CHUNKS;
        sum += select(vec4(0.0), other, side < stride && side + stride < SIDES);
    }
    return sum;
}

// Adds the subgroups up and stores the partition.
fn merge(lane: Lane, dest: Destination, state: State) {
    if (lane.in_subgroup == 0u) {
        tops[lane.subgroup] = state.top;
    }
    workgroupBarrier();
    var top = tops[0];
    for (var i = 1u; i < trips(SUBGROUPS, lane.index); i++) {
        top = max(top, tops[i]);
    }
    let shrink = exp(state.top - top);
    let sum = subgroupAdd(state.sum * shrink);
    if (lane.in_subgroup == 0u) {
        sums[lane.subgroup] = sum;
    }
    #unroll g < GROUP
        // The other half may still be read.
        let half = g % 2u * (2u * SUBGROUPS * CHUNKS);
        #unroll s < SPANS
            let low = over_sides(state.low[g * SPANS + s] * shrink[g], lane.in_subgroup);
            let high = over_sides(state.high[g * SPANS + s] * shrink[g], lane.in_subgroup);
            let chunk = chunk_of(lane.in_subgroup, s);
            if (chunk < CHUNKS) {
                let to = half + (lane.subgroup * CHUNKS + chunk) * 2u;
                merged[to] = low;
                merged[to + 1u] = high;
            }
        #end
        workgroupBarrier();
        for (var quad = lane.index; quad < CHUNKS * 2u; quad += WG) {
            var weighted = vec4(0.0);
            var all = 0.0;
            for (var i = 0u; i < trips(SUBGROUPS, lane.index); i++) {
                weighted += merged[half + i * CHUNKS * 2u + quad];
                all += sums[i][g];
            }
            store(dest, g, quad, weighted, top[g], all);
        }
    #end
}
