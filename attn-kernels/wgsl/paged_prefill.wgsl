// Flash attention of many query rows over paged KV, with log-sum-exp; each row sees keys up to its own position.
//   q      rows of q_stride f32, a multiple of 4, [num_heads, head_dim] from 0
//   tiles  [n] Tile, of at most WG / SHARE rows;  tables physical block ids: see pages_shared
//   out    [rows, num_heads, head_dim] f32;  lse [rows, num_heads] f32, natural log
//   slopes of ALiBi: see logit_alibi
//   selected lists of blocks, [query blocks, num_kv_heads]: see context_blocks
// A row sees the keys up to its own position that `mask` leaves. A row without keys is 0, its lse minus infinity; one with what
// is no number stays that.
// SHARE lanes own one row for GROUP query heads of one KV head, each a part of the channels, whose queries and outputs its
// registers hold; what their products add up to passes through workgroup memory. They go through the keys in tiles of eight at
// absolute positions. So a row's arithmetic depends on its position alone, not on the tile, chunk or block it sits in.
// With lists the tiles of eight come from the blocks in their order, so a list of all blocks gives the bits of none.
// With skip_rows, a row leaves out tiles of keys whose scores all lie far below the largest that it has seen.
// A dispatch goes through num_keys keys from first_key on (multiples of eight, in the order of `context`); from a tile's
// second on it continues what out and lse hold. With part_keys, workgroups along z go through so many of these keys each, and
// prefill_reduce puts their outputs together. Grid: (head groups, n, parts).
// Bytes moved: 2 * element * keys * head_dim a tile and head, of which caches serve the heads of a group; 8 * head_dim a row and
// head of q and out. CPU reference: src/cpu/paged_prefill.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import GROUP = 1
#import kv = kv_f16
// Spans of a lane's part of a key: elements that its module loads at a time.
#import SPANS = 8
// Lanes that share a row; one of the two below is 1, the other 0: whether a lane has a row for itself.
#import SHARE = 1
#import ALONE = 1
#import SHARED = 0
#import keys = keys_uniform
#import trips = trips_known
#import scores = scores_indexed
#import pages = pages_shared
#import SELECTED = 8
#import context = context_full
#import mask = mask_causal
#import SLOPES = 8
#import logit = logit_plain
// Whether a row leaves out tiles of keys that have no weight that counts, and whether a lane reads no values of such tiles.
#import SKIPS = 0
#import LEAVES = 0
#import skip = skip_none
#import tile
#import row_sum
#import WG = 64

#import paged_prefill_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> tiles: array<Tile>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

const KEYS: u32 = 8u;
const CHUNKS: u32 = HEAD_DIM / 8u;
// Quads and chunks of a lane. Loops over heads and quads that load and store are written out: llvmpipe's compiler leaves long
// ones as loops, and an array that one loop indexes lies in memory for all. They go by quads: Mesa takes time with the square of
// the number of loads and stores.
#let QUADS = HEAD_DIM / SHARE / 4
const OWN_CHUNKS: u32 = CHUNKS / SHARE;
// Keys of a tile that share a block.
const RUN: u32 = min(KEYS, BLOCK_SIZE);

struct Row {
    q: array<array<vec4<f32>, QUADS>, GROUP>,
    o: array<array<vec4<f32>, QUADS>, GROUP>,
    top: array<f32, GROUP>,
    sum: array<f32, GROUP>,
}

// [turn, head, key, lane]
var<workgroup> products: array<f32, 2u * GROUP * KEYS * WG>;

@compute @workgroup_size(WG)
fn paged_prefill(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = tiles[group.y];
    #unroll once < ALONE
        if (is_idle(lane, tile.rows)) {
            return;
        }
    #end
    let quad0 = lane % SHARE * QUADS;
    let head0 = group.x * GROUP;
    let kv_head = head0 / (params.num_heads / params.num_kv_heads);
    let index = min(lane / SHARE, tile.rows - 1u);
    let row = tile.row + index;
    let position = tile.position + index;
    let last = tile.position + tile.rows - 1u;
    let context = context_of(tile.list * params.num_kv_heads + kv_head);
    let low = first_visible(tile.position);
    let start = context_begin(context, low) / KEYS * KEYS;
    let first_key = params.first_key + group.z * params.part_keys;
    let begin = max(first_key, start);
    let end = context_end(context, last + 1u);
    // A part has an output of its own.
    let first_dispatch = params.part_keys != 0xffffffffu || first_key <= start;
    let num_keys = min(params.num_keys - min(group.z * params.part_keys, params.num_keys), params.part_keys);
    var r: Row;
    #unroll g < GROUP
        #unroll i < QUADS
            let at = (row * params.q_stride + (head0 + g) * HEAD_DIM) / 4u + quad0 + i;
            r.q[g][i] = q[at] * params.scale;
        #end
        r.top[g] = LOWEST;
        if (!first_dispatch) {
            // Normalised, so of sum 1 if there was any key.
            let at = row * params.num_heads + head0 + g;
            r.top[g] = max(lse[at], LOWEST);
            r.sum[g] = select(1.0, 0.0, lse[at] <= LOWEST);
            #unroll i < QUADS
                r.o[g][i] = out[at * (HEAD_DIM / 4u) + quad0 + i];
            #end
        }
    #end
    for (var i = begin; i < end && i - first_key < num_keys; i += KEYS) {
        let key0 = context_position(context, i);
        var head_of: Heads;
        for (var j = 0u; j < KEYS / RUN; j++) {
            head_of[j] = page_of(tile.table + min(key0 + j * RUN, last) / BLOCK_SIZE, kv_head);
        }
        attend(&r, head_of, Keys(key0, low, last, trips(KEYS, tile.rows), i / KEYS % 2u), position, head0, lane);
    }
    if (lane / SHARE >= tile.rows) {
        return;
    }
    // Nothing to add to what an earlier dispatch wrote.
    if (!first_dispatch && (begin >= end || context_position(context, begin) > position)) {
        return;
    }
    #unroll g < GROUP
        let at = (group.z * params.part_rows + row) * params.num_heads + head0 + g;
        #unroll i < QUADS
            out[at * (HEAD_DIM / 4u) + quad0 + i] = select(r.o[g][i] / r.sum[g], vec4(0.0), r.sum[g] == 0.0);
        #end
        if (quad0 == 0u) {
            lse[at] = select(r.top[g] + log(r.sum[g]), params.neg_inf, r.sum[g] == 0.0);
        }
    #end
}

// Eight keys from position `first` on, of which the rows of the tile together see those from `low` to `last`. No others
// are read, so unused slots may hold anything. `count` is KEYS; `turn` is 0 and 1 by turns.
struct Keys { first: u32, low: u32, last: u32, count: u32, turn: u32 }

fn visible(key: u32, position: u32) -> bool {
    return key >= first_visible(position) && key <= position;
}

// Scores, online softmax, values.
fn attend(r: ptr<function, Row>, head_of: Heads, keys: Keys, position: u32, head0: u32, lane: u32) {
    let key0 = keys.first;
    var heads = head_of;
    var s: Scores;
    for (var t = 0u; t < keys.count; t++) {
        let key = clamp(key0 + t, keys.low, keys.last);
        let head = head_at(&heads, t / RUN);
        let at = k_at(head, 0u, key % BLOCK_SIZE);
        var x = array<f32, GROUP>();
        #unroll n < SPANS
            let c = n * SPAN;
            let k = key_span(at, lane % SHARE * OWN_CHUNKS + c, lane);
            for (var g = 0u; g < GROUP; g++) {
                for (var i = 0u; i < 2u * SPAN; i++) {
                    let qv = (*r).q[g][c * 2u + i];
                    x[g] = fma(qv.x, k[i].x, x[g]);
                    x[g] = fma(qv.y, k[i].y, x[g]);
                    x[g] = fma(qv.z, k[i].z, x[g]);
                    x[g] = fma(qv.w, k[i].w, x[g]);
                }
            }
        #end
        let factor = k_factor(head, key % BLOCK_SIZE);
        for (var g = 0u; g < GROUP; g++) {
            put_score(&s, g, t, x[g] * factor);
        }
    }
    #unroll once < SHARED
        // Tiles take turns with two places: those of this one are read while the next is written.
        let of_turn = keys.turn * GROUP * KEYS;
        for (var j = 0u; j < GROUP * KEYS; j++) {
            products[(of_turn + j) * WG + lane] = s[j / KEYS][j % KEYS];
        }
        workgroupBarrier();
        for (var j = 0u; j < GROUP * KEYS; j++) {
            s[j / KEYS][j % KEYS] = row_sum((of_turn + j) * WG + lane, lane);
        }
    #end
    var weighs = false;
    #unroll g < GROUP
        var top = (*r).top[g];
        for (var t = 0u; t < KEYS; t++) {
            let x = logit(s[g][t], 1.0, head0 + g, key0 + t, position);
            s[g][t] = select(LOWEST, x, visible(key0 + t, position));
            top = max(top, s[g][t]);
        }
        #unroll once < SKIPS
            var most = s[g][0];
            for (var t = 1u; t < KEYS; t++) {
                most = max(most, s[g][t]);
            }
            let wanted = most >= (*r).top[g] + skip_below(position);
            weighs |= wanted;
            for (var t = 0u; t < KEYS; t++) {
                s[g][t] = select(LOWEST, s[g][t], wanted);
            }
        #end
        let shrink = exp((*r).top[g] - top);
        (*r).top[g] = top;
        var sum = (*r).sum[g] * shrink;
        for (var t = 0u; t < KEYS; t++) {
            s[g][t] = select(0.0, exp(s[g][t] - top), visible(key0 + t, position));
            sum += s[g][t];
        }
        (*r).sum[g] = sum;
        for (var i = 0u; i < QUADS; i++) {
            (*r).o[g][i] *= shrink;
        }
    #end
    #unroll once < LEAVES
        if (!weighs) {
            return;
        }
    #end
    for (var t = 0u; t < keys.count; t++) {
        if (key0 + t >= keys.low && key0 + t <= keys.last) {
            let head = head_at(&heads, t / RUN);
            let at = v_at(head, 0u, (key0 + t) % BLOCK_SIZE);
            let factor = v_factor(head, (key0 + t) % BLOCK_SIZE);
            var weights: array<f32, GROUP>;
            for (var g = 0u; g < GROUP; g++) {
                weights[g] = score_at(&s, g, t) * factor;
            }
            #unroll n < SPANS
                let c = n * SPAN;
                let v = value_span(at, lane % SHARE * OWN_CHUNKS + c, lane);
                for (var g = 0u; g < GROUP; g++) {
                    for (var i = 0u; i < 2u * SPAN; i++) {
                        (*r).o[g][c * 2u + i] = fma(vec4(weights[g]), v[i], (*r).o[g][c * 2u + i]);
                    }
                }
            #end
        }
    }
}
