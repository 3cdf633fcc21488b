enable f16;
enable wgpu_cooperative_matrix;
// paged_decode with cooperative matrices: the same buffers, partitions and results; queries and softmax weights are f16, and
// so are keys and values on their way through workgroup memory, whatever the cache keeps.
// A workgroup is one unit, which goes through its partition 16 keys a step for up to 16 query heads: what a step costs
// hardly depends on their number. Queries and weighted sums stay in registers. Keys, and after the softmax values, are staged
// in one tile; those of the next step are loaded meanwhile.
// Sums are not rescaled. Weights count from the largest logit of the first step; a step in which a logit exceeds that by a
// factor of more than 2^14 begins a new segment of the partition, and the sums so far are put down and added up later.
// Grid: that of paged_decode. Bytes moved: those of paged_decode, but keys and values once for 16 heads of a KV head.
// Needs subgroups of up to 32, and blocks of whole steps.
// CPU reference: src/cpu/paged_decode.rs
#import numbers
#import HEAD_DIM = 128
#import BLOCK_SIZE = 16
#import GROUP = 8
// Sixteens along a head.
#import SPANS = 8
// Heads of a lane in the softmax, where four lanes share a head.
#import ROWS = 1
// Loads of sixteen bytes a lane that bring the keys of a step, or its values.
#import LOADS = 8
#import kv = kv_staged_f16
#import decode_part
#import pages = pages_shared
#import SELECTED = 8
#import context = context_full
#import SLOPES = 8
#import logit = logit_plain
#import matrices
// Whether any lane of the workgroup found something.
#import any = any_subgroup

// Matrices of a subgroup across sixteen heads and sixteen keys, along a head, and across the values of a head. Subgroups that
// share a unit take turns along a head's values.
#let HEAD_OWN = 16 / MATRIX / M_SHARE
#let KEY_OWN = 16 / MATRIX / N_SHARE
#let ALONG = SPANS * 16 / MATRIX
#let VALUE_OWN = SPANS * KEY_OWN
#let FINER = 16 / MATRIX
#let QUERIES = HEAD_OWN * ALONG
#let SCORES = HEAD_OWN * KEY_OWN
#let SUMS = HEAD_OWN * VALUE_OWN
#let WEIGHTS = HEAD_OWN * FINER

const WG: u32 = 32u;
const KEYS: u32 = 16u;
const_assert BLOCK_SIZE % KEYS == 0u && HEAD_DIM == 16u * SPANS && GROUP <= 8u * ROWS;
// Rows in workgroup memory, in elements of the arrays: padded so that eight rows fall on different banks.
const TILE_STRIDE: u32 = CHUNKS + 1u;
const SCORE_STRIDE: u32 = 4u;
const WEIGHT_STRIDE: u32 = 6u;
const LOG2_E: f32 = 1.4426950408889634;
// Powers of two by which a logit may exceed the largest of the first step: f16 holds such weights.
const SLACK: f32 = 14.0;

// Before the first step the queries, then keys and values in turns. One store is sixteen bytes.
var<workgroup> tile: array<array<vec4<f16>, 2>, KEYS * TILE_STRIDE>;
var<workgroup> scores: array<vec4<f32>, 16u * SCORE_STRIDE>;
var<workgroup> weights: array<vec4<f16>, 16u * WEIGHT_STRIDE>;

@compute @workgroup_size(WG)
fn paged_decode_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    // First head of the subgroup, and first key of a step or dimension of sixteen.
    let share = select(0u, subgroup, SHARE > 1u);
    let own_head = share / N_SHARE * HEAD_OWN * MATRIX;
    let own_column = share % N_SHARE * KEY_OWN * MATRIX;
    let part = part_of(group);
    if (part.begin >= part.end) {
        store_nothing(destination_of(group, part), lane);
    }
    // Once or not at all: cooperative matrices may not follow a return.
    for (var go = select(0u, 1u, part.begin < part.end); go > 0u; go--) {
        let row = lane / 4u;
        let quad = lane % 4u;
        stage_queries(group, part, lane);
        workgroupBarrier();
        var queries: array<MatrixA, QUERIES>;
        #unroll c < ALONG
            #unroll h < HEAD_OWN
                let at = (own_head + h * MATRIX) * TILE_STRIDE + c * MATRIX / 8u;
                queries[c * HEAD_OWN + h] = coopLoadT<MatrixA>(&tile[at][0], 2u * TILE_STRIDE);
            #end
        #end
        workgroupBarrier();

        // Steps begin at multiples of KEYS.
        var key0 = part.begin / KEYS * KEYS;
        var block = block_of(part, key0);
        var keys = load_keys(lane, block, key0);
        var values = load_values(lane, block, key0);
        var factors = key_factors(quad, block, key0 % BLOCK_SIZE);
        stage_keys(lane, keys);
        block = block_of(part, key0 + KEYS);
        keys = load_keys(lane, block, key0 + KEYS);
        var next_factors = key_factors(quad, block, (key0 + KEYS) % BLOCK_SIZE);
        var next_block = block_of(part, key0 + 2u * KEYS);
        workgroupBarrier();

        var done: array<Softmax, ROWS>;
        for (var segment = 0u; key0 < part.end; segment++) {
            var sums: array<MatrixC, SUMS>;
            #unroll c < SUMS
                sums[c] = MatrixC();
            #end
            var softmax: array<Softmax, ROWS>;
            for (var first = true; key0 < part.end; first = false) {
                var s: array<MatrixC, SCORES>;
                #unroll i < SCORES
                    s[i] = MatrixC();
                #end
                #unroll c < ALONG
                    #unroll k < KEY_OWN
                        let at = (own_column + k * MATRIX) * TILE_STRIDE + c * MATRIX / 8u;
                        let own = coopLoad<MatrixB>(&tile[at][0], 2u * TILE_STRIDE);
                        #unroll h < HEAD_OWN
                            s[k * HEAD_OWN + h] = coopMultiplyAdd(queries[c * HEAD_OWN + h], own, s[k * HEAD_OWN + h]);
                        #end
                    #end
                #end
                #unroll k < KEY_OWN
                    #unroll h < HEAD_OWN
                        let at = (own_head + h * MATRIX) * SCORE_STRIDE + own_column / 4u + k * MATRIX_QUADS;
                        coopStoreT(s[k * HEAD_OWN + h], &scores[at], SCORE_STRIDE);
                    #end
                #end
                workgroupBarrier();

                var x: array<vec4<f32>, ROWS>;
                var most: array<f32, ROWS>;
                var grew = false;
                #unroll i < ROWS
                    x[i] = logits(part, row + i * 8u, quad, key0, scores[(row + i * 8u) * SCORE_STRIDE + quad] * factors);
                    most[i] = over_quads(max(max(x[i].x, x[i].y), max(x[i].z, x[i].w)));
                    grew |= most[i] > softmax[i].top + SLACK;
                #end
                if (first) {
                    #unroll i < ROWS
                        softmax[i] = Softmax(most[i], most[i], 0.0);
                    #end
                } else if (any_of(lane, grew)) {
                    break;
                }
                #unroll i < ROWS
                    softmax[i].most = max(softmax[i].most, most[i]);
                    let weight = exp2(x[i] - softmax[i].top);
                    softmax[i].sum += (weight.x + weight.y) + (weight.z + weight.w);
                    weights[(row + i * 8u) * WEIGHT_STRIDE + quad] = vec4<f16>(weight);
                #end
                stage_values(lane, counted(part, lane, key0, values));
                workgroupBarrier();

                values = load_values(lane, block, key0 + KEYS);
                var w: array<MatrixA, WEIGHTS>;
                #unroll f < FINER
                    #unroll h < HEAD_OWN
                        let at = (own_head + h * MATRIX) * WEIGHT_STRIDE + f * MATRIX_QUADS;
                        w[f * HEAD_OWN + h] = coopLoadT<MatrixA>(&weights[at], WEIGHT_STRIDE);
                    #end
                #end
                #unroll c < VALUE_OWN
                    #unroll f < FINER
                        let column = c / KEY_OWN * 2u + (own_column + c % KEY_OWN * MATRIX) / 8u;
                        let v = coopLoadT<MatrixB>(&tile[f * MATRIX * TILE_STRIDE + column][0], 2u * TILE_STRIDE);
                        #unroll h < HEAD_OWN
                            sums[c * HEAD_OWN + h] = coopMultiplyAdd(w[f * HEAD_OWN + h], v, sums[c * HEAD_OWN + h]);
                        #end
                    #end
                #end
                workgroupBarrier();
                stage_keys(lane, keys);
                workgroupBarrier();
                key0 += KEYS;
                factors = next_factors;
                keys = load_keys(lane, next_block, key0 + KEYS);
                next_factors = key_factors(quad, next_block, (key0 + KEYS) % BLOCK_SIZE);
                block = next_block;
                next_block = block_of(part, key0 + 2u * KEYS);
            }

            let dest = destination_of(group, part);
            var shares: array<Shares, ROWS>;
            #unroll i < ROWS
                softmax[i].sum = sum_over_quads(softmax[i].sum);
                shares[i] = shares_of(done[i], softmax[i], segment);
                let sum = done[i].sum * shares[i].before + softmax[i].sum * shares[i].now;
                done[i] = Softmax(shares[i].top, shares[i].top, sum);
            #end
            // All of what earlier segments put down, before it is written over.
            var before: array<vec4<f32>, SPANS * ROWS>;
            for (var more = min(segment, 1u); more > 0u; more--) {
                #unroll c < SPANS
                    #unroll i < ROWS
                        before[c * ROWS + i] = put_before(dest, row + i * 8u, c * 4u + quad);
                    #end
                #end
            }
            #unroll c < SPANS
                #unroll k < KEY_OWN
                    #unroll h < HEAD_OWN
                        let at = (own_head + h * MATRIX) * SCORE_STRIDE + own_column / 4u + k * MATRIX_QUADS;
                        coopStoreT(sums[(c * KEY_OWN + k) * HEAD_OWN + h], &scores[at], SCORE_STRIDE);
                    #end
                #end
                workgroupBarrier();
                #unroll i < ROWS
                    let sum = staged(scores[(row + i * 8u) * SCORE_STRIDE + quad]) * (shares[i].now * v_unit());
                    let all = fma(vec4(shares[i].before), before[c * ROWS + i], sum);
                    put_down(dest, row + i * 8u, c * 4u + quad, all, done[i], key0 >= part.end);
                #end
                workgroupBarrier();
            #end
        }
    }
}

// State of a head, in powers of two: the logit that weights count from, the largest one, and the sum of weights, of which each
// lane has a part until the segment ends.
struct Softmax { top: f32, most: f32, sum: f32 }

// Weights of the sums before a segment and of its own, from the largest logit of both on.
struct Shares { top: f32, before: f32, now: f32 }

fn shares_of(before: Softmax, now: Softmax, segment: u32) -> Shares {
    let top = select(max(before.most, now.most), now.most, segment == 0u);
    return Shares(top, select(exp2(before.top - top), 0.0, segment == 0u), exp2(now.top - top));
}

// Queries of the group's heads, rows of the tile; the rows left over are zero, and so are their weights.
fn stage_queries(group: vec3<u32>, part: Part, lane: u32) {
    let first = rows[params.first_row + group.z].x * params.q_stride + part.head0 * HEAD_DIM;
    // All loads before the first store: one after the other they take as long as a step of keys each.
    var low: array<vec4<f32>, SPANS>;
    var high: array<vec4<f32>, SPANS>;
    #unroll j < SPANS
        let i = lane + j * WG;
        let at = first + min(i / CHUNKS, GROUP - 1u) * HEAD_DIM + i % CHUNKS * 8u;
        low[j] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
        high[j] = vec4(q[at + 4u], q[at + 5u], q[at + 6u], q[at + 7u]);
    #end
    #unroll j < SPANS
        let i = lane + j * WG;
        let factor = select(0.0, params.scale * LOG2_E * k_unit(), i / CHUNKS < GROUP);
        let to = i / CHUNKS * TILE_STRIDE + i % CHUNKS;
        put(to, vec4<f16>(staged(low[j] * factor)), vec4<f16>(staged(high[j] * factor)));
    #end
    for (var i = lane; i < 16u * WEIGHT_STRIDE; i += WG) {
        weights[i] = vec4<f16>();
    }
}

fn put(at: u32, low: vec4<f16>, high: vec4<f16>) {
    tile[at][0] = low;
    tile[at][1] = high;
}

// Block and head of the key at `index` in the order of attention, of the last key past that.
fn block_of(part: Part, index: u32) -> u32 {
    let position = context_position(part.context, min(index, part.end - 1u));
    return page_of(part.table + position / BLOCK_SIZE, part.kv_head);
}

// The lane's part of the keys of the step at `key0`, and of the values. Unused slots of the block may be among them, and past
// the last key those of its block.
fn load_keys(lane: u32, block: u32, key0: u32) -> array<vec4<u32>, LOADS> {
    var words: array<vec4<u32>, LOADS>;
    let at = keys_at(lane, block, key0 % BLOCK_SIZE);
    #unroll i < LOADS
        words[i] = k_cache[at + i * KEYS_STEP];
    #end
    return words;
}

struct Values { words: array<vec4<u32>, LOADS>, factors: array<f32, LOADS> }

fn load_values(lane: u32, block: u32, key0: u32) -> Values {
    var values: Values;
    let at = values_at(lane, block, key0 % BLOCK_SIZE);
    #unroll i < LOADS
        values.words[i] = v_cache[at + i * VALUES_STEP];
    #end
    values.factors = value_factors(lane, block, key0 % BLOCK_SIZE);
    return values;
}

fn stage_keys(lane: u32, words: array<vec4<u32>, LOADS>) {
    #unroll i < LOADS
        stage_key(lane, i, words[i]);
    #end
}

fn stage_values(lane: u32, values: Values) {
    #unroll i < LOADS
        stage_value(lane, i, values.words[i], values.factors[i]);
    #end
}

fn counts(part: Part, key: u32) -> bool {
    return key >= part.begin && key < part.end;
}

// Whether all keys of the step at `key0` count.
fn all_count(part: Part, key0: u32) -> bool {
    return key0 >= part.begin && key0 + KEYS <= part.end;
}

// Zero in place of values that do not count: their weight is zero, and unused slots may hold anything.
fn counted(part: Part, lane: u32, key0: u32, values: Values) -> Values {
    var mine = values;
    if (!all_count(part, key0)) {
        #unroll i < LOADS
            let counts = counts(part, key0 + value_key(lane, i));
            mine.words[i] = select(vec4(0u), values.words[i], counts);
            mine.factors[i] = select(0.0, values.factors[i], counts);
        #end
    }
    return mine;
}

// Logits of four columns of the scores of a head, of which `score` holds the products: LOWEST for keys that do not count.
fn logits(part: Part, row: u32, quad: u32, key0: u32, score: vec4<f32>) -> vec4<f32> {
    var x = score;
    #unroll e < 4
        let key = key0 + key_of(quad * 4u + e);
        let position = context_position(part.context, clamp(key, part.begin, part.end - 1u));
        x[e] = logit(x[e], LOG2_E, part.head0 + min(row, GROUP - 1u), position, part.position);
    #end
    if (!all_count(part, key0)) {
        #unroll e < 4
            x[e] = select(LOWEST, x[e], counts(part, key0 + key_of(quad * 4u + e)));
        #end
    }
    return x;
}

fn over_quads(x: f32) -> f32 {
    let pair = max(x, subgroupShuffleXor(x, 1u));
    return max(pair, subgroupShuffleXor(pair, 2u));
}

fn sum_over_quads(x: f32) -> f32 {
    let pair = x + subgroupShuffleXor(x, 1u);
    return pair + subgroupShuffleXor(pair, 2u);
}

// Four columns of the sums of head `g`, as earlier segments put them down.
fn put_before(dest: Destination, g: u32, column: u32) -> vec4<f32> {
    return partial[row_of(dest, min(g, GROUP - 1u)) + quad_of(column)];
}

// Puts down the sums of head `g` over all segments so far: the partition's result after the last.
fn put_down(dest: Destination, g: u32, column: u32, sum: vec4<f32>, softmax: Softmax, last: bool) {
    if (g >= GROUP || g < dest.stored) {
        return;
    }
    let index = quad_of(column);
    if (last) {
        store(dest, g, index, sum, softmax.top / LOG2_E, softmax.sum);
    } else {
        partial[row_of(dest, g) + index] = sum;
    }
}
