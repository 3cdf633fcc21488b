// Absorbed multi-head latent attention (MLA, DeepSeek-V2) of query rows, one partition of keys a workgroup, HEADS query
// heads together: one latent a token is the key and the value of all heads.
//   q        rows of q_stride f32, [num_heads, LATENT + ROPE]: queries through the key projection, then their rope part
//   latents  rows of LATENT + ROPE elements, key the whole, value the first LATENT: see latents_paged and latents_two
//   rows     [first_row + n] vec4<u32>: row of q and out, and what the latents module reads
//   partial  [n, num_heads, max_partitions, LATENT] f32, stats, reduced: as in paged_decode; paged_reduce follows
// A lane owns four heads and 8 or 16 channels, whose queries and outputs stay in its registers; so do those channels of
// LATENTS_AHEAD latents, which serve as keys and then as values, while the next ones are on their way. The lanes of four heads
// add their parts of scores up through workgroup memory. A row's arithmetic depends on its own keys alone.
// A dispatch may do a part of the keys: num_keys, whole partitions of partition_size keys, from first_key on. A workgroup goes
// through a partition by PARTITION keys, whose slots it keeps in workgroup memory.
// Grid: (max_partitions, head groups, n). Bytes moved: keys * (LATENT + ROPE) * element a row and
// head group. CPU reference: src/cpu/mla_decode.rs
#import numbers
#import LATENT = 512
#import ROPE = 64
#import BLOCK_SIZE = 16
#import HEADS = 16
// Words of a key and of a value that a lane owns, SPANS apart, and quads of elements of a word.
#import KEY_WORDS = 2
#import VALUE_WORDS = 2
#import WORD_QUADS = 2
// Parts of the sum of a score: see add_parts.
#import PIECES = 2
// Latents in flight a lane.
#import LATENTS_AHEAD = 3
// 1 where outputs are rescaled at every step, also by 1: a branch takes more registers.
#import STEADY = 0
#import element = latent_f16
#import SELECTED = 7
#import latents = latents_paged

#import mla_decode_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> partial: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> stats: array<vec2<f32>>;

// Words of a latent, and lanes that share four heads.
const WORDS: u32 = (LATENT + ROPE) / WORD;
const VALUES: u32 = LATENT / WORD;
const SPANS: u32 = (WORDS + KEY_WORDS - 1u) / KEY_WORDS;
const QUARTETS: u32 = (HEADS + 3u) / 4u;
const WG: u32 = QUARTETS * SPANS;
const_assert WORD_QUADS * 4u == WORD && VALUE_WORDS * SPANS >= VALUES;
const PARTITION: u32 = 256u;

var<workgroup> slots: array<u32, PARTITION>;
// [LATENTS_AHEAD, QUARTETS, SPANS], of four heads.
var<workgroup> parts: array<vec4<f32>, LATENTS_AHEAD * WG>;
// [PIECES, LATENTS_AHEAD, QUARTETS, 4]
var<workgroup> sums: array<f32, PIECES * LATENTS_AHEAD * QUARTETS * 4u>;

@compute @workgroup_size(WG)
fn mla_decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[params.first_row + group.z];
    let head0 = group.y * HEADS;
    let begin = latents_begin(row, group.z);
    let end = latents_end(row, group.z);
    let size = params.partition_size;
    let first = (max(begin, params.first_key) / size + group.x) * size;
    if (max(first, begin) >= end || first - params.first_key >= params.num_keys) {
        // A row without keys is zero; where the reduce pass follows, that writes it.
        if (params.reduced == 0u) {
            for (var i = lane; i < HEADS * LATENT / 4u; i += WG) {
                partial[(row.x * params.num_heads + head0) * (LATENT / 4u) + i] = vec4(0.0);
            }
        }
        return;
    }
    let quartet = lane / SPANS;
    let span = lane % SPANS;
    let queries = load_queries(quartet, span, row.x * params.q_stride + head0 * (LATENT + ROPE));
    var state: State;
    state.top = vec4(LOWEST);
    let last = min(end, first + size);
    for (var part = max(first, begin) / PARTITION * PARTITION; part < last; part += PARTITION) {
        let keys = Keys(max(part, begin) - part, min(last - part, PARTITION));
        // Slots of the part before are read no more: two barriers have passed since.
        for (var i = lane; i < keys.end; i += WG) {
            slots[i] = latent_slot(row, group.z, part + max(i, keys.begin));
        }
        workgroupBarrier();
        let start = keys.begin - keys.begin % LATENTS_AHEAD;
        var next = load(span, start, keys);
        for (var t0 = start; t0 < keys.end; t0 += LATENTS_AHEAD) {
            let tile = next;
            next = load(span, t0 + LATENTS_AHEAD, keys);
            leave_parts(lane, queries, tile);
            workgroupBarrier();
            add_parts(lane);
            workgroupBarrier();
            state = attend(quartet, t0, keys, tile, state);
        }
    }
    let index = first / size - begin / size;
    let partial_head = (group.z * params.num_heads + head0) * params.max_partitions + index;
    store(quartet, span, state, partial_head, row.x * params.num_heads + head0);
}

// Keys of a part that count: from begin until before end. No others are read.
struct Keys { begin: u32, end: u32 }

// A lane's channels of its four heads, scaled.
struct Queries { quads: array<vec4<f32>, KEY_WORDS * WORD_QUADS * 4u> }

// A lane's channels of LATENTS_AHEAD latents.
struct Tile { words: array<latent_word, LATENTS_AHEAD * KEY_WORDS> }

// Largest scores and sums of weights of four heads, and a lane's channels of their weighted values.
struct State { top: vec4<f32>, sum: vec4<f32>, o: array<vec4<f32>, VALUE_WORDS * WORD_QUADS * 4u> }

fn load_queries(quartet: u32, span: u32, from_row: u32) -> Queries {
    var queries: Queries;
    #unroll i < KEY_WORDS
        let word = span + i * SPANS;
        #unroll h < 4
            let at = (from_row + min(quartet * 4u + h, HEADS - 1u) * (LATENT + ROPE)) / 4u + min(word, WORDS - 1u) * WORD_QUADS;
            #unroll c < WORD_QUADS
                // Past the end a lane repeats the last word, times zero.
                queries.quads[(i * WORD_QUADS + c) * 4u + h] = q[at + c] * select(0.0, params.scale, word < WORDS);
            #end
        #end
    #end
    return queries;
}

// The tile from `t0` on; outside the keys that count, copies of others.
fn load(span: u32, t0: u32, keys: Keys) -> Tile {
    var tile: Tile;
    #unroll t < LATENTS_AHEAD
        let slot = slots[clamp(t0 + t, keys.begin, keys.end - 1u)];
        #unroll i < KEY_WORDS
            tile.words[t * KEY_WORDS + i] = latent_at(slot, min(span + i * SPANS, WORDS - 1u));
        #end
    #end
    return tile;
}

// Leaves the lane's part of the scores of a tile.
fn leave_parts(lane: u32, queries: Queries, tile: Tile) {
    #unroll t < LATENTS_AHEAD
        var part = vec4(0.0);
        #unroll i < KEY_WORDS
            #unroll c < WORD_QUADS
                let key = word_quad(tile.words[t * KEY_WORDS + i], c);
                #unroll h < 4
                    part[h] += dot(queries.quads[(i * WORD_QUADS + c) * 4u + h], key);
                #end
            #end
        #end
        parts[t * WG + lane] = part;
    #end
}

// Adds the parts of a score up, in PIECES by as many lanes.
fn add_parts(lane: u32) {
    const LENGTH = (SPANS + PIECES - 1u) / PIECES;
    for (var i = lane; i < PIECES * LATENTS_AHEAD * QUARTETS * 4u; i += WG) {
        // Neighbours begin at different banks.
        let turn = i / 4u % LENGTH;
        let piece = i / (LATENTS_AHEAD * QUARTETS * 4u) * LENGTH;
        let of_score = i / (QUARTETS * 4u) % LATENTS_AHEAD * WG + i / 4u % QUARTETS * SPANS;
        var sum = 0.0;
        for (var j = 0u; j < LENGTH; j++) {
            let span = piece + (j + turn) % LENGTH;
            if (span < SPANS) {
                sum += parts[of_score + span][i % 4u];
            }
        }
        sums[i] = sum;
    }
}

// One step of the online softmax.
fn attend(quartet: u32, t0: u32, keys: Keys, tile: Tile, before: State) -> State {
    var state = before;
    var scores: array<vec4<f32>, LATENTS_AHEAD>;
    #unroll t < LATENTS_AHEAD
        #unroll piece < PIECES
            let at = ((piece * LATENTS_AHEAD + t) * QUARTETS + quartet) * 4u;
            scores[t] += vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
        #end
        scores[t] = select(vec4(LOWEST), scores[t], counts(t0 + t, keys));
        state.top = max(state.top, scores[t]);
    #end
    let shrink = exp(before.top - state.top);
    if (STEADY == 1u || any(shrink != vec4(1.0))) {
        state.sum *= shrink;
        #unroll i < VALUE_WORDS
            #unroll c < WORD_QUADS
                #unroll h < 4
                    state.o[(i * WORD_QUADS + c) * 4u + h] *= shrink[h];
                #end
            #end
        #end
    }
    #unroll t < LATENTS_AHEAD
        let weight = select(vec4(0.0), exp(scores[t] - state.top), counts(t0 + t, keys));
        state.sum += weight;
        #unroll i < VALUE_WORDS
            #unroll c < WORD_QUADS
                let value = word_quad(tile.words[t * KEY_WORDS + i], c);
                #unroll h < 4
                    let at = (i * WORD_QUADS + c) * 4u + h;
                    state.o[at] = fma(vec4(weight[h]), value, state.o[at]);
                #end
            #end
        #end
    #end
    return state;
}

fn counts(key: u32, keys: Keys) -> bool {
    return key >= keys.begin && key < keys.end;
}

fn store(quartet: u32, span: u32, state: State, partial_head: u32, out_head: u32) {
    #unroll h < 4
        let head = quartet * 4u + h;
        let at = partial_head + head * params.max_partitions;
        let to = select(at, out_head + head, params.reduced == 0u) * (LATENT / 4u);
        // A quotient, as in paged_reduce: one partition gives the same bits with and without it.
        let divisor = select(1.0, state.sum[h], params.reduced == 0u);
        if (head < HEADS) {
            #unroll i < VALUE_WORDS
                let word = span + i * SPANS;
                if (word < VALUES) {
                    #unroll c < WORD_QUADS
                        partial[to + word * WORD_QUADS + c] = state.o[(i * WORD_QUADS + c) * 4u + h] / divisor;
                    #end
                }
            #end
            if (span == 0u) {
                stats[at] = vec2(state.top[h], state.sum[h]);
            }
        }
    #end
}
