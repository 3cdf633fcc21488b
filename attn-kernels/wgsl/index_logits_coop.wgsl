enable f16;
enable wgpu_cooperative_matrix;
// index_logits with cooperative matrices: the same bindings, parameters and logits. Queries are rounded to f16, which
// holds every fp8 code; scales of keys are applied to the sums.
// A workgroup is one unit with the queries of 16 * HEAD_TILES heads in its registers. It goes through its keys 16 at a time,
// those of the next step loaded ahead; products pass through workgroup memory a matrix at a time, where two lanes own a key
// and add its heads up. Keys are gone through again for further heads.
// Grid: (ceil(logit_stride / KEYS), n). Bytes moved: those of index_logits, queries once a tile of 64 keys.
// Needs subgroups of up to 32. CPU reference: src/cpu/index_logits.rs
#import HEAD_DIM = 128
#import BLOCK_SIZE = 64
// Sixteens along a head, and across the heads.
#import SPANS = 8
#import HEAD_TILES = 4
// Parts of the heads, whose sums are in registers one after the other.
#import PARTS = 1
// Spans of keys that a lane stages.
#import LOADS = 4
#import k = k_coop_index_fp8
#import matrices

// Matrices of a subgroup across sixteen keys and sixteen heads, and along a head: eight channels of a half of the tile, of which
// a smaller matrix takes one.
#let KEY_OWN = 16 / MATRIX / M_SHARE
#let HEAD_OWN = 16 / MATRIX / N_SHARE
#let ALONG = SPANS * 16 / MATRIX
#let TILES = HEAD_TILES / PARTS
#let HEADS_OWN = TILES * HEAD_OWN
#let SUMS = HEADS_OWN * KEY_OWN
#let QUERIES = PARTS * HEADS_OWN * ALONG

#import index_logits_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> gates: array<f32>;
@group(0) @binding(6) var<storage, read_write> logits: array<f32>;

const WG: u32 = 32u;
// Keys of a workgroup, and of a step.
const KEYS: u32 = 64u;
const STEP: u32 = 16u;
const HEADS: u32 = 16u * HEAD_TILES;
const CHUNKS: u32 = 2u * SPANS;
// Rows in workgroup memory, in elements of the arrays: padded so that lanes side by side fall on different banks.
const TILE_STRIDE: u32 = CHUNKS + 1u;
const PRODUCT_STRIDE: u32 = 6u;

// Tile of queries, then of keys: the first eight channels of all spans, then the second eight.
var<workgroup> tile: array<array<vec4<f16>, 2>, STEP * TILE_STRIDE>;
// [key, head]
var<workgroup> products: array<vec4<f32>, STEP * PRODUCT_STRIDE>;
var<workgroup> gate: array<vec4<f32>, HEADS / 4u>;

@compute @workgroup_size(WG)
fn index_logits_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    // First key and head of the subgroup among sixteen.
    let share = select(0u, subgroup, SHARE > 1u);
    let own_key = share / N_SHARE * KEY_OWN * MATRIX;
    let own_head = share % N_SHARE * HEAD_OWN * MATRIX;
    let row = rows[group.y];
    let end = min((group.x + 1u) * KEYS, params.logit_stride);
    for (var key = group.x * KEYS + lane; key < end; key += WG) {
        if (key < row.y || key >= row.z) {
            logits[group.y * params.logit_stride + key] = params.neg_inf;
        }
    }
    let begin = max(group.x * KEYS, row.y / STEP * STEP);
    let seen = min(end, row.z);
    // Once for HEADS heads, or not at all: cooperative matrices may not follow a return.
    for (var head0 = select(params.num_heads, 0u, begin < seen); head0 < params.num_heads; head0 += HEADS) {
        if (lane < HEADS / 4u) {
            gate[lane] = gates_of(row.x, head0 + lane * 4u);
        }
        var keys = load_keys(lane, row, begin, load_blocks(lane, row, begin));
        var blocks = load_blocks(lane, row, begin + STEP);
        var queries: array<MatrixB, QUERIES>;
        var chunks = load_queries(lane, row.x, head0);
        #unroll t < HEAD_TILES
            stage_queries(lane, chunks);
            workgroupBarrier();
            chunks = load_queries(lane, row.x, head0 + (t + 1u) * 16u);
            #unroll c < ALONG
                #unroll h < HEAD_OWN
                    let at = (own_head + h * MATRIX) * TILE_STRIDE + c * MATRIX / 8u;
                    queries[(t * HEAD_OWN + h) * ALONG + c] = coopLoad<MatrixB>(&tile[at][0], 2u * TILE_STRIDE);
                #end
            #end
            workgroupBarrier();
        #end
        for (var key0 = begin; key0 < seen; key0 += STEP) {
            stage_keys(lane, keys.spans);
            workgroupBarrier();
            let scale = keys.scale;
            keys = load_keys(lane, row, key0 + STEP, blocks);
            blocks = load_blocks(lane, row, key0 + 2u * STEP);
            var sum = vec4(0.0);
            #unroll part < PARTS
                var s: array<MatrixC, SUMS>;
                #unroll i < SUMS
                    s[i] = MatrixC();
                #end
                #unroll c < ALONG
                    #unroll k < KEY_OWN
                        let key_at = (own_key + k * MATRIX) * TILE_STRIDE + c * MATRIX / 8u;
                        let own = coopLoadT<MatrixA>(&tile[key_at][0], 2u * TILE_STRIDE);
                        #unroll t < HEADS_OWN
                            let query = (part * HEADS_OWN + t) * ALONG + c;
                            s[t * KEY_OWN + k] = coopMultiplyAdd(own, queries[query], s[t * KEY_OWN + k]);
                        #end
                    #end
                #end
                #unroll t < TILES
                    #unroll h < HEAD_OWN
                        #unroll k < KEY_OWN
                            let at = (own_key + k * MATRIX) * PRODUCT_STRIDE + own_head / 4u + h * MATRIX_QUADS;
                            coopStoreT(s[(t * HEAD_OWN + h) * KEY_OWN + k], &products[at], PRODUCT_STRIDE);
                        #end
                    #end
                    workgroupBarrier();
                    #unroll i < 2
                        let quad = i * 2u + lane % 2u;
                        let product = products[lane / 2u * PRODUCT_STRIDE + quad];
                        sum = fma(gate[(part * TILES + t) * 4u + quad], max(product, vec4(0.0)), sum);
                    #end
                    workgroupBarrier();
                #end
            #end
            let half = (sum.x + sum.y) + (sum.z + sum.w);
            let whole = half + subgroupShuffleXor(half, 1u);
            let key = key0 + lane / 2u;
            if (lane % 2u == 0u && key >= row.y && key < seen) {
                let at = group.y * params.logit_stride + key;
                let logit = whole * K_UNIT * scale;
                logits[at] = select(logits[at] + logit, logit, head0 == 0u);
            }
        }
    }
}

// Gates of the heads from `head` on; zero for those that do not exist.
fn gates_of(row: u32, head: u32) -> vec4<f32> {
    var gate = vec4(0.0);
    #unroll i < 4
        let own = min(head + i, params.num_heads - 1u);
        gate[i] = select(0.0, gates[row * params.num_heads + own], own == head + i);
    #end
    return gate;
}

fn put(at: u32, low: vec4<f16>, high: vec4<f16>) {
    tile[at][0] = low;
    tile[at][1] = high;
}

// The lane's part of the queries of 16 heads, eight channels each.
struct Queries { low: array<vec4<f16>, SPANS>, high: array<vec4<f16>, SPANS> }

// Queries of the heads from `head` on; copies stand in for those that do not exist.
fn load_queries(lane: u32, row: u32, head: u32) -> Queries {
    var queries: Queries;
    #unroll i < SPANS
        let n = lane + i * WG;
        let own = min(head + n / CHUNKS, params.num_heads - 1u);
        let at = (row * params.num_heads + own) * (HEAD_DIM / 4u) + n % CHUNKS * 2u;
        queries.low[i] = vec4<f16>(staged(q[at]));
        queries.high[i] = vec4<f16>(staged(q[at + 1u]));
    #end
    return queries;
}

// Rows of the tile are heads.
fn stage_queries(lane: u32, queries: Queries) {
    #unroll i < SPANS
        let n = lane + i * WG;
        let chunk = n % CHUNKS;
        let to = n / CHUNKS * TILE_STRIDE + chunk % 2u * SPANS + chunk / 2u;
        put(to, queries.low[i], queries.high[i]);
    #end
}

// Blocks of the keys of which a lane loads spans, and of the key whose heads it adds up.
struct Blocks { spans: array<u32, LOADS>, key: u32 }

// Blocks of the step at `key0`: one load if the step lies in one block.
fn load_blocks(lane: u32, row: vec4<u32>, key0: u32) -> Blocks {
    var blocks: Blocks;
    #unroll i < LOADS
        blocks.spans[i] = block_of(row, key0, (lane + i * WG) / SPANS);
    #end
    blocks.key = block_of(row, key0, lane / 2u);
    return blocks;
}

fn block_of(row: vec4<u32>, key0: u32, key: u32) -> u32 {
    let apart = select(key, 0u, BLOCK_SIZE % STEP == 0u);
    return tables[row.w + counted(row, key0 + apart) / BLOCK_SIZE];
}

// Keys that count stand in for others.
fn counted(row: vec4<u32>, key: u32) -> u32 {
    return clamp(key, row.y, row.z - 1u);
}

// A lane's spans of the 16 keys of a step, spans of a key side by side, and the scale of the key whose heads it adds up.
struct Keys { spans: array<KeySpan, LOADS>, scale: f32 }

fn load_keys(lane: u32, row: vec4<u32>, key0: u32, blocks: Blocks) -> Keys {
    var keys: Keys;
    #unroll i < LOADS
        let n = lane + i * WG;
        let offset = counted(row, key0 + n / SPANS) % BLOCK_SIZE;
        keys.spans[i] = key_span(key_at(blocks.spans[i], offset), n % SPANS);
    #end
    keys.scale = key_scale(blocks.key, counted(row, key0 + lane / 2u) % BLOCK_SIZE);
    return keys;
}

fn stage_keys(lane: u32, spans: array<KeySpan, LOADS>) {
    #unroll i < LOADS
        let n = lane + i * WG;
        if (n < STEP * SPANS) {
            let quads = key_quads(spans[i]);
            let to = n / SPANS * TILE_STRIDE + n % SPANS;
            put(to, quads[0], quads[1]);
            put(to + SPANS, quads[2], quads[3]);
        }
    #end
}
