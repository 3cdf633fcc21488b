enable f16;
enable wgpu_cooperative_matrix;
// paged_prefill with cooperative matrices: the same bindings, tiles and results. Caches of codes become f16 on the way
// to workgroup memory.
// A subgroup owns as many rows of one query head as it has lanes, and 32 if it has more, or half of that for heads of
// more than 128; queries and output stay in its registers, of which lanes of twice as many rows would not have enough.
// All subgroups of a workgroup go through the keys 16 at a time, at absolute positions, with K and V staged in
// workgroup memory. Scores pass through workgroup memory, where a lane owns a row for the softmax; lanes above do what
// those of the same rows do. A row's output is rescaled only when its maximum grew by a factor of more than 2^8
// (FlashAttention-4): weights stay under 2^8, which f16 holds.
// A row's arithmetic depends on its position alone, not on the tile, chunk or block it sits in.
// A dispatch goes through num_keys keys from first_key on, a multiple of 16 (in the order of `context`). Unlike
// paged_prefill it does not go on where an earlier one ended: lse_merge puts dispatches together, prefill_reduce the parts of
// one, of part_keys keys each, along z.
// With skip_rows, a subgroup leaves a step out whose scores all lie far below the largest that their rows have seen.
// Bytes moved: those of paged_prefill, keys once a tile of 32 * SUBGROUPS rows.
// Grid: (num_heads, n, parts); the last tile, usually the longest, starts first.
// CPU reference: src/cpu/paged_prefill.rs
#import numbers
#import BLOCK_SIZE = 16
#import matrices
// Units of 32 rows.
#import SUBGROUPS = 4
// Subgroups that share the rows of one.
#import HALVES = 1
// Sixteens along a head.
#import SPANS = 4
// Chunks of a key that a lane stages.
#import LOADS = 1
#import pages = entries_shared
#import SELECTED = 8
#import context = context_full
#import mask = mask_causal
#import SLOPES = 8
#import logit = logit_plain
// One of the two is 1, the other 0: whether a subgroup leaves out steps of which no row has a weight that counts.
#import PLAIN = 1
#import SKIPS = 0
#import skip = skip_none
#import tile
#import kv = kv_coop_f16
// Matrices along the rows of a subgroup, along a head, and along the keys of a step and a sixteen of a head.
#let ROWS = SUBGROUP / MATRIX / UNITS / HALVES
#let ALONG = SPANS * 16 / MATRIX
#let FINER = 16 / MATRIX
#let STEP_ROWS = FINER * ROWS
#let OWN = ALONG * ROWS

#import paged_prefill_params
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> tiles: array<Tile>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

const KEYS: u32 = 16u;
const TILE_ROWS: u32 = 32u * SUBGROUPS;
const WG: u32 = TILE_ROWS * UNITS * HALVES;
// Rows of a subgroup.
const OWN_ROWS: u32 = SUBGROUP / UNITS / HALVES;
const HEAD_DIM: u32 = 16u * SPANS;
const CHUNKS: u32 = HEAD_DIM / 8u;
// Lanes that stage a key.
const LANES: u32 = WG / KEYS;
const_assert LOADS * LANES >= CHUNKS;
// Rows in workgroup memory, in elements of the arrays: padded so that eight rows fall on different banks.
const KV_STRIDE: u32 = HEAD_DIM / 4u + 2u;
const SCORE_STRIDE: u32 = TILE_ROWS + 4u;
const WEIGHT_STRIDE: u32 = 6u;
const LOG2_E: f32 = 1.4426950408889634;
// Growth of a row's maximum, in powers of two, that its weights absorb.
const SLACK: f32 = 8.0;

var<workgroup> keys: array<vec4<f16>, KEYS * KV_STRIDE>;
var<workgroup> values: array<vec4<f16>, KEYS * KV_STRIDE>;
// [16, rows]: a lane reads its row without bank conflicts.
var<workgroup> scores: array<f32, 16u * SCORE_STRIDE>;
var<workgroup> weights: array<vec4<f16>, TILE_ROWS * WEIGHT_STRIDE>;
// Whether a row of the workgroup must be rescaled, for even and odd steps. Sixteen bytes, as matrices in workgroup
// memory start at multiples of that.
var<workgroup> grown: array<atomic<u32>, 4>;

@compute @workgroup_size(WG)
fn paged_prefill_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let tile = tiles[groups.y - 1u - group.y];
    let head = group.x;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    let first_row = subgroup * OWN_ROWS;
    let mine = first_row + within % OWN_ROWS;
    let is_owner = within < OWN_ROWS;
    let index = min(mine, tile.rows - 1u);
    let row = tile.row + index;
    let position = tile.position + index;
    let context = context_of(tile.list * params.num_kv_heads + kv_head);
    // Keys of this part.
    let first_key = params.first_key + group.z * params.part_keys;
    let all = params.first_key + min(params.num_keys, 0xffffffffu - params.first_key);
    let limit = min(first_key + min(params.part_keys, 0xffffffffu - first_key), all);
    let end = min(context_end(context, tile.position + tile.rows), limit);
    // First key that any row of the tile sees.
    let low = max(context_begin(context, first_visible(tile.position)), first_key);
    let has_keys = context_any(context, tile.position + tile.rows) && low < end;
    let last = select(0u, end - 1u, has_keys);
    // Without keys the loop does not run.
    let begin = select(last + 1u, low / KEYS * KEYS, has_keys);
    let visible = first_visible(position);
    let weight0 = first_row * WEIGHT_STRIDE;

    var queries: array<MatrixA, OWN>;
    var sums: array<MatrixC, OWN>;
    #unroll i < OWN
        sums[i] = MatrixC();
    #end
    let factor = params.scale * LOG2_E * k_scale();
    #unroll c < SPANS
        #unroll i < 4
            let at = row * params.q_stride + head * HEAD_DIM + c * 16u + i * 4u;
            weights[mine * WEIGHT_STRIDE + i] =
                vec4<f16>(vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * factor);
        #end
        workgroupBarrier();
        #unroll f < FINER
            #unroll r < ROWS
                let at = weight0 + r * MATRIX * WEIGHT_STRIDE + f * MATRIX_QUADS;
                queries[(c * FINER + f) * ROWS + r] = coopLoadT<MatrixA>(&weights[at], WEIGHT_STRIDE);
            #end
        #end
        workgroupBarrier();
    #end

    // A lane stages chunks of one key and of one value: neighbours read neighbouring chunks of the cache. Keys of the next
    // step are loaded after the scores of this one and go to workgroup memory after its softmax; then its values are
    // loaded, and stored after the next scores; table entries are read a step ahead. Outside the keys that rows see, copies
    // stand in: their weights are zero, and unused slots of the cache may hold anything. A block of a list is whole blocks
    // of the cache: an index into the keys and its position have the same offset in a block.
    let k_key = lane % KEYS;
    let k_chunk = lane / KEYS;
    let v_key = lane / LANES;
    let v_chunk = lane % LANES;
    // Above the score of a key that does not count: its weight is zero even before the first that does.
    var top = 0.5 * LOWEST;
    var sum = 0.0;
    // Largest score yet, which `top` may lag behind, and what the subgroup weighs of a step.
    var peak = LOWEST;
    var weighs = 1u;
    var k_next: array<Chunk, LOADS>;
    var v_next: array<Chunk, LOADS>;
    let k_at0 = min(max(begin + k_key, low), last);
    let v_at0 = min(max(begin + v_key, low), last);
    let k_block0 = page_named(entry_of(tile, context, kv_head, k_at0), kv_head);
    let v_block0 = page_named(entry_of(tile, context, kv_head, v_at0), kv_head);
    let first_scale = k_row_scale(k_block0, k_at0 % BLOCK_SIZE);
    var v_next_scale = v_row_scale(v_block0, v_at0 % BLOCK_SIZE);
    #unroll i < LOADS
        let c = k_chunk + i * LANES;
        if (c < CHUNKS) {
            let first = k_cache[k_at(k_block0, c, k_at0 % BLOCK_SIZE)];
            keys[k_key * KV_STRIDE + c * 2u] = chunk_low(first, first_scale);
            keys[k_key * KV_STRIDE + c * 2u + 1u] = chunk_high(first, first_scale);
        }
        let d = v_chunk + i * LANES;
        if (d < CHUNKS) {
            v_next[i] = v_cache[v_at(v_block0, d, v_at0 % BLOCK_SIZE)];
        }
    #end
    var k_entry = entry_of(tile, context, kv_head, min(begin + KEYS + block_key(k_key), last));
    var v_entry = entry_of(tile, context, kv_head, min(begin + KEYS + block_key(v_key), last));
    if (lane < 2u) {
        atomicStore(&grown[lane], 0u);
    }
    workgroupBarrier();

    // The drivers' compilers pipeline this form of the loop, not `i0 < last + 1`: a fifth of the speed.
    for (var i0 = begin; i0 <= last; i0 += KEYS) {
        let key0 = context_position(context, i0);
        let parity = i0 / KEYS % 2u;
        var products: array<MatrixC, STEP_ROWS>;
        #unroll i < STEP_ROWS
            products[i] = MatrixC();
        #end
        #unroll c < ALONG
            #unroll f < FINER
                let k = coopLoad<MatrixB>(&keys[f * MATRIX * KV_STRIDE + c * MATRIX_QUADS], KV_STRIDE);
                #unroll r < ROWS
                    products[f * ROWS + r] = coopMultiplyAdd(queries[c * ROWS + r], k, products[f * ROWS + r]);
                #end
            #end
        #end
        let k_offset = min(i0 + KEYS + k_key, last) % BLOCK_SIZE;
        let k_head = page_named(k_entry, kv_head);
        #unroll i < LOADS
            let c = k_chunk + i * LANES;
            if (c < CHUNKS) {
                k_next[i] = k_cache[k_at(k_head, c, k_offset)];
            }
        #end
        let k_next_scale = k_row_scale(k_head, k_offset);
        let v_head = page_named(v_entry, kv_head);
        k_entry = entry_of(tile, context, kv_head, min(i0 + 2u * KEYS + block_key(k_key), last));
        v_entry = entry_of(tile, context, kv_head, min(i0 + 2u * KEYS + block_key(v_key), last));
        #unroll f < FINER
            #unroll r < ROWS
                coopStore(products[f * ROWS + r], &scores[f * MATRIX * SCORE_STRIDE + first_row + r * MATRIX], SCORE_STRIDE);
            #end
        #end
        workgroupBarrier();

        #unroll i < LOADS
            let c = v_chunk + i * LANES;
            if (c < CHUNKS) {
                values[v_key * KV_STRIDE + c * 2u] = chunk_low(v_next[i], v_next_scale);
                values[v_key * KV_STRIDE + c * 2u + 1u] = chunk_high(v_next[i], v_next_scale);
            }
        #end

        // Online softmax of the lane's row, in powers of two.
        var s: array<vec4<f32>, 4>;
        #unroll i < 4
            let at = vec4(key0 + i * 4u) + vec4(0u, 1u, 2u, 3u);
            s[i] = logits(score_quad(mine, i), head, at, position);
        #end
        // Masked step: some row of the tile does not see some key.
        let unseen = key0 + KEYS - 1u > tile.position || key0 < first_visible(tile.position + tile.rows - 1u);
        if (unseen || i0 + KEYS > limit) {
            #unroll i < 4
                let quad = vec4(i * 4u) + vec4(0u, 1u, 2u, 3u);
                let at = vec4(key0) + quad;
                let seen = (at >= vec4(visible)) & (at <= vec4(position)) & (vec4(i0) + quad < vec4(limit));
                s[i] = select(vec4(LOWEST), s[i], seen);
            #end
        }
        let most = max(max(s[0], s[1]), max(s[2], s[3]));
        let highest = max(max(most.x, most.y), max(most.z, most.w));
        #unroll once < SKIPS
            // A row that sees no key of the step has no say.
            let wanted = highest > 0.5 * LOWEST && highest >= peak + skip_below(position) * LOG2_E;
            peak = max(peak, highest);
            weighs = select(0u, 1u, subgroupAny(wanted));
            #unroll i < 4
                s[i] = select(vec4(LOWEST), s[i], weighs == 1u);
            #end
        #end
        var shrink = 1.0;
        if (highest > top + SLACK) {
            shrink = exp2(top - highest);
            top = highest;
            if (i0 > begin) {
                atomicStore(&grown[parity], 1u);
            }
        }
        var total = vec4(0.0);
        #unroll i < 4
            let weight = exp2(s[i] - top);
            total += weight;
            weights[mine * WEIGHT_STRIDE + i] = vec4<f16>(weight);
        #end
        sum = sum * shrink + ((total.x + total.y) + (total.z + total.w));
        if (lane == 0u) {
            atomicStore(&grown[1u - parity], 0u);
        }
        #unroll i < LOADS
            let c = k_chunk + i * LANES;
            if (c < CHUNKS) {
                keys[k_key * KV_STRIDE + c * 2u] = chunk_low(k_next[i], k_next_scale);
                keys[k_key * KV_STRIDE + c * 2u + 1u] = chunk_high(k_next[i], k_next_scale);
            }
        #end
        workgroupBarrier();
        let v_offset = min(i0 + KEYS + v_key, last) % BLOCK_SIZE;
        #unroll i < LOADS
            let c = v_chunk + i * LANES;
            if (c < CHUNKS) {
                v_next[i] = v_cache[v_at(v_head, c, v_offset)];
            }
        #end
        v_next_scale = v_row_scale(v_head, v_offset);

        var shares: array<MatrixA, STEP_ROWS>;
        #unroll f < FINER
            #unroll r < ROWS
                let at = weight0 + r * MATRIX * WEIGHT_STRIDE + f * MATRIX_QUADS;
                shares[f * ROWS + r] = coopLoadT<MatrixA>(&weights[at], WEIGHT_STRIDE);
            #end
        #end
        // Runs once or not at all, the same for the whole workgroup.
        for (var again = atomicLoad(&grown[parity]); again != 0u; again = 0u) {
            #unroll c < ALONG
                #unroll r < ROWS
                    coopStore(sums[c * ROWS + r], &scores[first_row + r * MATRIX], SCORE_STRIDE);
                #end
                workgroupBarrier();
                if (is_owner) {
                    #unroll i < MATRIX
                        scores[mine + i * SCORE_STRIDE] *= shrink;
                    #end
                }
                workgroupBarrier();
                #unroll r < ROWS
                    sums[c * ROWS + r] = coopLoad<MatrixC>(&scores[first_row + r * MATRIX], SCORE_STRIDE);
                #end
                workgroupBarrier();
            #end
        }
        #unroll once < PLAIN
            #unroll c < ALONG
                #unroll f < FINER
                    let v = coopLoadT<MatrixB>(&values[f * MATRIX * KV_STRIDE + c * MATRIX_QUADS], KV_STRIDE);
                    #unroll r < ROWS
                        sums[c * ROWS + r] = coopMultiplyAdd(shares[f * ROWS + r], v, sums[c * ROWS + r]);
                    #end
                #end
            #end
        #end
        #unroll once < SKIPS
            for (var go = weighs; go != 0u; go = 0u) {
                #unroll c < ALONG
                    #unroll f < FINER
                        let v = coopLoadT<MatrixB>(&values[f * MATRIX * KV_STRIDE + c * MATRIX_QUADS], KV_STRIDE);
                        #unroll r < ROWS
                            sums[c * ROWS + r] = coopMultiplyAdd(shares[f * ROWS + r], v, sums[c * ROWS + r]);
                        #end
                    #end
                #end
            }
        #end
    }

    let at = (group.z * params.part_rows + row) * params.num_heads + head;
    #unroll c < ALONG
        #unroll r < ROWS
            coopStore(sums[c * ROWS + r], &scores[first_row + r * MATRIX], SCORE_STRIDE);
        #end
        workgroupBarrier();
        if (is_owner && mine < tile.rows) {
            #unroll i < MATRIX_QUADS
                let o = select(score_quad(mine, i) / sum * v_scale(), vec4(0.0), sum == 0.0);
                #unroll d < 4
                    out[at * HEAD_DIM + c * MATRIX + i * 4u + d] = o[d];
                #end
            #end
        }
        workgroupBarrier();
    #end
    if (is_owner && mine < tile.rows) {
        lse[at] = select((top + log2(sum)) / LOG2_E, params.neg_inf, sum == 0.0);
    }
}

fn logits(score: vec4<f32>, head: u32, key: vec4<u32>, position: u32) -> vec4<f32> {
    return vec4(
        logit(score.x, LOG2_E, head, key.x, position),
        logit(score.y, LOG2_E, head, key.y, position),
        logit(score.z, LOG2_E, head, key.z, position),
        logit(score.w, LOG2_E, head, key.w, position),
    );
}

// Columns 4 * i to 4 * i + 3 of row `row` of `scores`.
fn score_quad(row: u32, i: u32) -> vec4<f32> {
    let at = row + i * 4u * SCORE_STRIDE;
    return vec4(
        scores[at], scores[at + SCORE_STRIDE], scores[at + 2u * SCORE_STRIDE], scores[at + 3u * SCORE_STRIDE],
    );
}

// The part of the offset `key` in a step that decides its block: none where a step lies in one block, and its id is the
// same for all lanes.
fn block_key(key: u32) -> u32 {
    return select(key, 0u, BLOCK_SIZE % KEYS == 0u);
}

// Table entry of the key at `index` in the order of attention; of some block of the sequence if there are no keys.
fn entry_of(tile: Tile, context: Context, kv_head: u32, index: u32) -> u32 {
    let position = min(context_position(context, index), tile.position + tile.rows - 1u);
    return entry_at(tile.table + position / BLOCK_SIZE, kv_head);
}
