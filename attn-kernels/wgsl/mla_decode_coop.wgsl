enable f16;
enable wgpu_cooperative_matrix;
// mla_decode with cooperative matrices: the same bindings, rows and partials; queries and softmax weights are f16, and so
// are latents on their way through workgroup memory, whatever the cache keeps.
// A workgroup of eight units goes through a partition for 32 heads, by PARTITION keys whose slots it keeps in workgroup
// memory, 16 keys a step. For scores a unit owns 16 heads
// and a quarter of the channels, whose queries stay in its registers: four partial scores are added up by the softmax, in
// which four lanes own a head. For values a unit owns an eighth of the channels of all 32 heads. Latents are loaded a
// step ahead. Outputs are rescaled only when a maximum grew by a factor of more than 2^8 (FlashAttention-4).
// Subgroups of 64 lanes have the registers of one unit (RDNA 3.5: 128 a lane with eight of them, 256 with four): four of
// them do the same for 16 heads, then again for the other 16.
// Bytes moved: keys * (LATENT + ROPE) * element a row and 32 heads, twice that by subgroups of 64 lanes.
// Grid: (max_partitions, num_heads / 32, n). CPU reference: src/cpu/mla_decode.rs
#import numbers
#import LATENT = 512
#import ROPE = 64
#import BLOCK_SIZE = 16
// Sixteens along a quarter of a key, and along an eighth of a value.
#import KEY_SPANS = 9
#import VALUE_SPANS = 4
// Words of a tile that a lane stages.
#import LOADS = 5
#import element = latent_coop_f16
#import SELECTED = 7
#import latents = latents_paged
#import matrices

// Matrices of a subgroup for scores: across sixteen heads and sixteen keys of a unit, and along a quarter of a key.
#let HEAD_OWN = 16 / MATRIX / M_SHARE
#let KEY_OWN = 16 / MATRIX / N_SHARE
#let ALONG = KEY_SPANS * 16 / MATRIX
#let QUERIES = ALONG * HEAD_OWN
#let QUERY_LOADS = 2 / UNITS
// Groups of sixteen heads.
#let HALVES = 2 / UNITS
#let SCORES = KEY_OWN * HEAD_OWN
// And for values: across the heads, of which subgroups that share a unit have a part each, and along its channels.
#let ROWS = HALVES * 16 / MATRIX / SHARE
#let COLS = VALUE_SPANS * UNITS * 16 / MATRIX
#let SUMS = ROWS * COLS
#let WEIGHTS = ROWS * 16 / MATRIX
#let FINER = 16 / MATRIX
// Elements of a matrix that a lane has.
#let OWN = MATRIX * MATRIX / SUBGROUP

#import mla_decode_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> partial: array<f32>;
@group(0) @binding(6) var<storage, read_write> stats: array<vec2<f32>>;

const WG: u32 = 256u;
const HEADS: u32 = 16u * HALVES;
const KEYS: u32 = 16u;
const WIDTH: u32 = LATENT + ROPE;
// Words of a latent.
const WORDS: u32 = WIDTH / WORD;
const_assert KEY_SPANS * 64u == WIDTH && VALUE_SPANS * 128u == LATENT;
const_assert LOADS * WG >= KEYS * WORDS;
// Rows in workgroup memory, in elements of the arrays: padded so that eight rows fall on different banks.
const TILE_STRIDE: u32 = WIDTH / 4u + 2u;
const QUERY_STRIDE: u32 = 6u;
const SCORE_STRIDE: u32 = HEADS + 4u;
const WEIGHT_STRIDE: u32 = 6u;
const PARTITION: u32 = 256u;
const LOG2_E: f32 = 1.4426950408889634;
// Growth of a head's maximum, in powers of two, that its weights absorb.
const SLACK: f32 = 8.0;

var<workgroup> slots: array<u32, PARTITION>;
// Keys, and before them 16 channels of each quarter of the queries.
var<workgroup> tile: array<vec4<f16>, max(KEYS * TILE_STRIDE, 4u * HEADS * QUERY_STRIDE)>;
// [quarter, key, head]; between steps also a matrix of each subgroup, [channel, head].
var<workgroup> scores: array<f32, 4u * KEYS * SCORE_STRIDE>;
var<workgroup> weights: array<vec4<f16>, HEADS * WEIGHT_STRIDE>;
var<workgroup> shrinks: array<f32, HEADS>;
var<workgroup> sums: array<f32, HEADS>;
// Whether a head of the workgroup must be rescaled, for even and odd steps. Sixteen bytes, as matrices in workgroup
// memory start at multiples of that.
var<workgroup> grown: array<atomic<u32>, 4>;

@compute @workgroup_size(WG)
fn mla_decode_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let row = rows[params.first_row + group.z];
    let begin = latents_begin(row, group.z);
    let end = latents_end(row, group.z);
    let size = params.partition_size;
    let first = (max(begin, params.first_key) / size + group.x) * size;
    let last = min(end, first + size);
    let has_keys = max(first, begin) < end && first - params.first_key < params.num_keys;
    if (!has_keys && params.reduced == 0u) {
        // A row without keys is zero; where the reduce pass follows, that writes it.
        let out = (row.x * params.num_heads + group.y * 32u) * LATENT;
        for (var i = lane; i < 32u * LATENT; i += WG) {
            partial[out + i] = 0.0;
        }
    }
    // Not at all without keys: cooperative matrices may not follow a return.
    for (var turn = select(UNITS, 0u, has_keys); turn < UNITS; turn++) {
        let head0 = group.y * 32u + turn * HEADS;
        let out_head = row.x * params.num_heads + head0;
        // Queries, 16 channels of each quarter at a time.
        let unit = subgroup / SHARE;
        let share = subgroup % SHARE;
        let own_head = share / N_SHARE * HEAD_OWN * MATRIX;
        let own_key = share % N_SHARE * KEY_OWN * MATRIX;
        let factor = params.scale * LOG2_E;
        var queries: array<MatrixA, QUERIES>;
        #unroll c < KEY_SPANS
            #unroll i < QUERY_LOADS
                let at = lane + i * WG;
                let of_head = at / 4u % HEADS;
                let channel = (at / (4u * HEADS) * KEY_SPANS + c) * 16u + at % 4u * 4u;
                let from_row = row.x * params.q_stride + (head0 + of_head) * WIDTH + channel;
                tile[at / 4u * QUERY_STRIDE + at % 4u] = vec4<f16>(q[from_row / 4u] * factor);
            #end
            workgroupBarrier();
            let first_head = unit / HALVES * HEADS + unit % HALVES * 16u + own_head;
            #unroll f < FINER
                #unroll h < HEAD_OWN
                    let q_at = (first_head + h * MATRIX) * QUERY_STRIDE + f * MATRIX_QUADS;
                    queries[(c * FINER + f) * HEAD_OWN + h] = coopLoadT<MatrixA>(&tile[q_at], QUERY_STRIDE);
                #end
            #end
            workgroupBarrier();
        #end
        var own_sums: array<MatrixC, SUMS>;
        #unroll i < SUMS
            own_sums[i] = MatrixC();
        #end
        // First head and channel of the subgroup's values, and its patch of `scores`.
        let head_of = share * ROWS * MATRIX;
        let channel_of = unit * VALUE_SPANS * UNITS * 16u;
        let patch0 = subgroup * MATRIX * MATRIX;

        // In the softmax four lanes own a head; lanes beyond those do the same.
        let mine = subgroup * SUBGROUP + within;
        let head = mine / 4u % HEADS;
        let quad = mine % 4u;
        // Above the score of a key that does not count: its weight is zero even before the first that does.
        var top = 0.5 * LOWEST;
        var sum = 0.0;
        if (lane < 2u) {
            atomicStore(&grown[lane], 0u);
        }
        let first_part = max(first, begin) / PARTITION * PARTITION;
        for (var part = first_part; part < last; part += PARTITION) {
            let keys = Keys(max(part, begin) - part, min(last - part, PARTITION));
            // Slots of the part before are read no more: a step ends with a barrier.
            for (var i = lane; i < keys.end; i += WG) {
                slots[i] = latent_slot(row, group.z, part + max(i, keys.begin));
            }
            workgroupBarrier();
            let start = keys.begin - keys.begin % KEYS;
            var next: array<latent_word, LOADS>;
            #unroll i < LOADS
                next[i] = latent_at(slots[staged(lane + i * WG, start, keys)], (lane + i * WG) % WORDS);
            #end
            for (var t0 = start; t0 < keys.end; t0 += KEYS) {
                let parity = t0 / KEYS % 2u;
                #unroll i < LOADS
                    let at = lane + i * WG;
                    if (at < KEYS * WORDS) {
                        tile[at / WORDS * TILE_STRIDE + at % WORDS * 2u] = next[i].low;
                        tile[at / WORDS * TILE_STRIDE + at % WORDS * 2u + 1u] = next[i].high;
                    }
                #end
                workgroupBarrier();
                #unroll i < LOADS
                    next[i] = latent_at(slots[staged(lane + i * WG, t0 + KEYS, keys)], (lane + i * WG) % WORDS);
                #end

                let quarter = unit / HALVES;
                var s: array<MatrixC, SCORES>;
                #unroll i < SCORES
                    s[i] = MatrixC();
                #end
                #unroll c < ALONG
                    #unroll k < KEY_OWN
                        let k_at = (own_key + k * MATRIX) * TILE_STRIDE + quarter * KEY_SPANS * 4u + c * MATRIX_QUADS;
                        let own = coopLoad<MatrixB>(&tile[k_at], TILE_STRIDE);
                        #unroll h < HEAD_OWN
                            s[k * HEAD_OWN + h] = coopMultiplyAdd(queries[c * HEAD_OWN + h], own, s[k * HEAD_OWN + h]);
                        #end
                    #end
                #end
                #unroll k < KEY_OWN
                    #unroll h < HEAD_OWN
                        let first = (quarter * KEYS + own_key + k * MATRIX) * SCORE_STRIDE;
                        let to = first + unit % HALVES * 16u + own_head + h * MATRIX;
                        coopStore(s[k * HEAD_OWN + h], &scores[to], SCORE_STRIDE);
                    #end
                #end
                workgroupBarrier();

                // Online softmax, in powers of two.
                var x = vec4(0.0);
                #unroll part < 4
                    x += score_quad(part * KEYS * SCORE_STRIDE + quad * 4u * SCORE_STRIDE + head);
                #end
                let at = vec4(t0 + quad * 4u) + vec4(0u, 1u, 2u, 3u);
                x = select(vec4(LOWEST), x, (at >= vec4(keys.begin)) & (at < vec4(keys.end)));
                var highest = max(max(x.x, x.y), max(x.z, x.w));
                highest = max(highest, subgroupShuffleXor(highest, 1u));
                highest = max(highest, subgroupShuffleXor(highest, 2u));
                var shrink = 1.0;
                if (highest > top + SLACK) {
                    shrink = exp2(top - highest);
                    top = highest;
                    if (t0 > start || part > first_part) {
                        atomicStore(&grown[parity], 1u);
                    }
                }
                let weight = exp2(x - top);
                sum = sum * shrink + ((weight.x + weight.y) + (weight.z + weight.w));
                if (mine < 4u * HEADS) {
                    weights[head * WEIGHT_STRIDE + quad] = vec4<f16>(weight);
                    shrinks[head] = shrink;
                }
                if (lane == 0u) {
                    atomicStore(&grown[1u - parity], 0u);
                }
                workgroupBarrier();

                // Runs once or not at all, the same for the whole workgroup.
                for (var again = atomicLoad(&grown[parity]); again != 0u; again = 0u) {
                    #unroll c < COLS
                        #unroll r < ROWS
                            coopStore(own_sums[c * ROWS + r], &scores[patch0], MATRIX);
                            workgroupBarrier();
                            #unroll i < OWN
                                scores[patch0 + i * SUBGROUP + within] *=
                                    shrinks[head_of + r * MATRIX + (i * SUBGROUP + within) % MATRIX];
                            #end
                            workgroupBarrier();
                            own_sums[c * ROWS + r] = coopLoad<MatrixC>(&scores[patch0], MATRIX);
                            workgroupBarrier();
                        #end
                    #end
                }
                var shares: array<MatrixA, WEIGHTS>;
                #unroll f < FINER
                    #unroll r < ROWS
                        let from_row = (head_of + r * MATRIX) * WEIGHT_STRIDE + f * MATRIX_QUADS;
                        shares[f * ROWS + r] = coopLoadT<MatrixA>(&weights[from_row], WEIGHT_STRIDE);
                    #end
                #end
                #unroll c < COLS
                    #unroll f < FINER
                        let v_at = f * MATRIX * TILE_STRIDE + channel_of / 4u + c * MATRIX_QUADS;
                        let v = coopLoadT<MatrixB>(&tile[v_at], TILE_STRIDE);
                        #unroll r < ROWS
                            own_sums[c * ROWS + r] = coopMultiplyAdd(shares[f * ROWS + r], v, own_sums[c * ROWS + r]);
                        #end
                    #end
                #end
                workgroupBarrier();
            }
        }

        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        let index = first / size - begin / size;
        let partial_head = (group.z * params.num_heads + head0) * params.max_partitions + index;
        if (mine < 4u * HEADS && quad == 0u) {
            sums[head] = sum;
            stats[partial_head + head * params.max_partitions] = vec2(top / LOG2_E, sum);
        }
        workgroupBarrier();
        #unroll c < COLS
            #unroll r < ROWS
                coopStore(own_sums[c * ROWS + r], &scores[patch0], MATRIX);
                workgroupBarrier();
                #unroll i < OWN
                    let at = i * SUBGROUP + within;
                    let of_head = head_of + r * MATRIX + at % MATRIX;
                    put(scores[patch0 + at], of_head, channel_of + c * MATRIX + at / MATRIX, partial_head, out_head);
                #end
                workgroupBarrier();
            #end
        #end
    }
}

// Keys of a part that count: from begin until before end. No others are read.
struct Keys { begin: u32, end: u32 }

// Key that word `at` of the tile from `t0` on is of; outside the keys that count, another.
fn staged(at: u32, t0: u32, keys: Keys) -> u32 {
    return clamp(t0 + min(at / WORDS, KEYS - 1u), keys.begin, keys.end - 1u);
}

// Scores of four keys from the one at `at` on.
fn score_quad(at: u32) -> vec4<f32> {
    return vec4(
        scores[at], scores[at + SCORE_STRIDE], scores[at + 2u * SCORE_STRIDE], scores[at + 3u * SCORE_STRIDE],
    );
}

fn put(value: f32, head: u32, channel: u32, partial_head: u32, out_head: u32) {
    if (params.reduced == 0u) {
        partial[(out_head + head) * LATENT + channel] = value / sums[head];
    } else {
        partial[(partial_head + head * params.max_partitions) * LATENT + channel] = value;
    }
}
