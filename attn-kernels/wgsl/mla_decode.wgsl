// Absorbed multi-head latent attention (MLA, DeepSeek-V2) of query rows, one partition of keys a workgroup, HEADS query
// heads together: one latent a token is the key and the value of all heads.
//   q        rows of q_stride f32, [num_heads, LATENT + ROPE]: queries through the key projection, then their rope part
//   latents  rows of LATENT + ROPE elements, key the whole, value the first LATENT: see latents_paged and latents_two
//   rows     [n] vec4<u32>: row of q and out, and what the latents module reads
//   partial  [n, num_heads, max_partitions, LATENT] f32, stats, reduced: as in paged_decode; paged_reduce follows
// Latents go through workgroup memory TOKENS at a time, the next ones on their way meanwhile. A row's arithmetic depends
// on its own keys alone. Grid: (max_partitions, head groups, n). CPU reference: src/cpu/mla_decode.rs
#import numbers
#import LATENT = 512
#import ROPE = 64
#import BLOCK_SIZE = 16
#import HEADS = 16
#import TOKENS = 8
#import partition_fixed
#import element = latent_f16
#import SELECTED = 7
#import latents = latents_paged

#import mla_decode_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> partial: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> stats: array<vec2<f32>>;

const WG: u32 = 128u;
// Words of a latent.
const WORDS: u32 = (LATENT + ROPE) / WORD;
const LOADS: u32 = (TOKENS * WORDS + WG - 1u) / WG;
// In the value phase a lane owns four channels of every SIDES-th head.
const QUADS: u32 = LATENT / 4u;
const SIDES: u32 = WG / QUADS;
const HEADS_A_LANE: u32 = (HEADS + SIDES - 1u) / SIDES;

var<workgroup> slots: array<u32, PARTITION>;
var<workgroup> tile: array<latent_word, TOKENS * WORDS>;
var<workgroup> scores: array<f32, HEADS * TOKENS>;
var<workgroup> weights: array<f32, HEADS * TOKENS>;
var<workgroup> shrink: array<f32, HEADS>;
var<workgroup> totals: array<vec2<f32>, HEADS>;

@compute @workgroup_size(WG)
fn mla_decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.z];
    let head0 = group.y * HEADS;
    let begin = latents_begin(row, group.z);
    let end = latents_end(row, group.z);
    let first = (begin / PARTITION + group.x) * PARTITION;
    if (max(first, begin) >= end) {
        // A row without keys is zero; where the reduce pass follows, that writes it.
        if (params.reduced == 0u) {
            for (var i = lane; i < HEADS * QUADS; i += WG) {
                partial[(row.x * params.num_heads + head0) * QUADS + i] = vec4(0.0);
            }
        }
        return;
    }
    let keys = Keys(max(first, begin) - first, min(end - first, PARTITION));
    for (var i = lane; i < keys.end; i += WG) {
        slots[i] = latent_slot(row, group.z, first + max(i, keys.begin));
    }
    workgroupBarrier();

    // In the score phase a lane owns one head and one token of a tile.
    let head = lane / TOKENS;
    let token = lane % TOKENS;
    let query = (row.x * params.q_stride + (head0 + head) * (LATENT + ROPE)) / 4u;
    let start = keys.begin - keys.begin % TOKENS;
    var online = Online(LOWEST, 0.0);
    var o: array<vec4<f32>, HEADS_A_LANE>;
    var next = load(lane, start, keys);
    for (var t0 = start; t0 < keys.end; t0 += TOKENS) {
        for (var i = 0u; i < LOADS; i++) {
            if (lane + i * WG < TOKENS * WORDS) {
                tile[lane + i * WG] = next[i];
            }
        }
        workgroupBarrier();
        next = load(lane, t0 + TOKENS, keys);
        var score = LOWEST;
        let counts = t0 + token >= keys.begin && t0 + token < keys.end;
        if (head < HEADS) {
            score = select(LOWEST, dot_with(query, token) * params.scale, counts);
            scores[lane] = score;
        }
        workgroupBarrier();
        if (head < HEADS) {
            online = weigh(online, head, token, score, counts);
        }
        workgroupBarrier();
        accumulate(lane, &o);
        workgroupBarrier();
    }
    finish(lane, online);
    let partial_head = (group.z * params.num_heads + head0) * params.max_partitions + group.x;
    store(lane, &o, partial_head, row.x * params.num_heads + head0);
}

// Keys of the partition that count: from begin until before end. No others are read.
struct Keys { begin: u32, end: u32 }

// Largest score and sum of weights of the tokens that a lane owns.
struct Online { top: f32, sum: f32 }

// What the lane stages of the tile from `t0` on; outside the keys that count, copies of others.
fn load(lane: u32, t0: u32, keys: Keys) -> array<latent_word, LOADS> {
    var words: array<latent_word, LOADS>;
    for (var i = 0u; i < LOADS; i++) {
        let at = lane + i * WG;
        words[i] = latent_at(slots[clamp(t0 + at / WORDS, keys.begin, keys.end - 1u)], at % WORDS);
    }
    return words;
}

fn dot_with(query: u32, token: u32) -> f32 {
    var sum = 0.0;
    for (var word = 0u; word < WORDS; word++) {
        sum += word_dot(tile[token * WORDS + word], query + word * (WORD / 4u));
    }
    return sum;
}

// Leaves the tile's weights in `weights` and what they shrink earlier ones by in `shrink`.
fn weigh(before: Online, head: u32, token: u32, score: f32, counts: bool) -> Online {
    var top = before.top;
    for (var t = 0u; t < TOKENS; t++) {
        top = max(top, scores[head * TOKENS + t]);
    }
    let factor = exp(before.top - top);
    let weight = select(0.0, exp(score - top), counts);
    weights[head * TOKENS + token] = weight;
    if (token == 0u) {
        shrink[head] = factor;
    }
    return Online(top, before.sum * factor + weight);
}

fn accumulate(lane: u32, o: ptr<function, array<vec4<f32>, HEADS_A_LANE>>) {
    let quad = lane % QUADS;
    let side = lane / QUADS;
    for (var j = 0u; j < HEADS_A_LANE; j++) {
        (*o)[j] *= shrink[min(side + j * SIDES, HEADS - 1u)];
    }
    for (var t = 0u; t < TOKENS; t++) {
        let value = word_quad(tile[t * WORDS + quad * 4u / WORD], quad);
        for (var j = 0u; j < HEADS_A_LANE; j++) {
            let weight = weights[min(side + j * SIDES, HEADS - 1u) * TOKENS + t];
            (*o)[j] = fma(vec4(weight), value, (*o)[j]);
        }
    }
}

// Leaves (max, sum) of each head in `totals`.
fn finish(lane: u32, online: Online) {
    if (lane < HEADS * TOKENS) {
        scores[lane] = online.sum;
    }
    workgroupBarrier();
    if (lane < HEADS * TOKENS && lane % TOKENS == 0u) {
        var sum = 0.0;
        for (var t = 0u; t < TOKENS; t++) {
            sum += scores[lane + t];
        }
        totals[lane / TOKENS] = vec2(online.top, sum);
    }
    workgroupBarrier();
}

fn store(lane: u32, o: ptr<function, array<vec4<f32>, HEADS_A_LANE>>, partial_head: u32, out_head: u32) {
    let quad = lane % QUADS;
    let side = lane / QUADS;
    for (var j = 0u; j < HEADS_A_LANE; j++) {
        let head = side + j * SIDES;
        if (side < SIDES && head < HEADS) {
            let at = partial_head + head * params.max_partitions;
            if (params.reduced == 0u) {
                partial[(out_head + head) * QUADS + quad] = (*o)[j] / totals[head].y;
            } else {
                partial[at * QUADS + quad] = (*o)[j];
            }
            if (quad == 0u) {
                stats[at] = totals[head];
            }
        }
    }
}
