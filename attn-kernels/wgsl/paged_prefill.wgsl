// Flash attention of many query rows over paged KV, causal from the bottom right, with log-sum-exp.
//   q      rows of q_stride f32, [num_heads, head_dim] from 0
//   tiles  [n] vec4<u32>: first row, rows (at most WG), position of the first row, first entry of the block table
//   tables physical block ids
//   out    [rows, num_heads, head_dim] f32;  lse [rows, num_heads] f32, natural log
// A lane owns one row for GROUP query heads of one KV head and goes through the keys in tiles of eight at absolute
// positions. So a row's arithmetic depends on its position alone, not on the tile, chunk or block it sits in.
// A dispatch goes through num_keys keys from first_key on (multiples of eight); from the second on it continues what
// out and lse hold. Grid: (head groups, n). CPU reference: src/cpu/paged_prefill.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import GROUP = 1
#import kv = kv_f16
#import keys = keys_uniform
override WG: u32 = 64u;

struct PagedPrefillParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    first_key: u32,
    scale: f32,
    neg_inf: f32,
    num_keys: u32,
    pad0: u32,
}

@group(0) @binding(0) var<uniform> params: PagedPrefillParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> tiles: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

const KEYS: u32 = 8u;
const CHUNKS: u32 = HEAD_DIM / 8u;
const QUADS: u32 = HEAD_DIM / 4u;
// Keys of a tile that share a block.
const RUN: u32 = min(KEYS, BLOCK_SIZE);

struct Row {
    q: array<array<vec4<f32>, QUADS>, GROUP>,
    o: array<array<vec4<f32>, QUADS>, GROUP>,
    top: array<f32, GROUP>,
    sum: array<f32, GROUP>,
}

@compute @workgroup_size(WG)
fn paged_prefill(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = tiles[group.y];
    let head0 = group.x * GROUP;
    let kv_head = head0 / (params.num_heads / params.num_kv_heads);
    let index = min(lane, tile.y - 1u);
    let row = tile.x + index;
    let position = tile.z + index;
    var r: Row;
    for (var g = 0u; g < GROUP; g++) {
        for (var i = 0u; i < QUADS; i++) {
            let at = row * params.q_stride + (head0 + g) * HEAD_DIM + i * 4u;
            r.q[g][i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
        }
        r.top[g] = LOWEST;
        if (params.first_key > 0u) {
            // Normalised, so of sum 1.
            let at = row * params.num_heads + head0 + g;
            r.top[g] = lse[at];
            r.sum[g] = 1.0;
            for (var i = 0u; i < QUADS; i++) {
                let o = at * HEAD_DIM + i * 4u;
                r.o[g][i] = vec4(out[o], out[o + 1u], out[o + 2u], out[o + 3u]);
            }
        }
    }
    let last = tile.z + tile.y - 1u;
    for (var key0 = params.first_key; key0 <= last && key0 - params.first_key < params.num_keys; key0 += KEYS) {
        var head_of: array<u32, KEYS / RUN>;
        for (var i = 0u; i < KEYS / RUN; i++) {
            let block = tables[tile.w + min(key0 + i * RUN, last) / BLOCK_SIZE];
            head_of[i] = block * params.num_kv_heads + kv_head;
        }
        attend(&r, head_of, key0, position, last, lane);
    }
    if (lane >= tile.y || position < params.first_key) {
        return;
    }
    for (var g = 0u; g < GROUP; g++) {
        let at = row * params.num_heads + head0 + g;
        for (var i = 0u; i < QUADS; i++) {
            let o = r.o[g][i] / r.sum[g];
            for (var d = 0u; d < 4u; d++) {
                out[at * HEAD_DIM + i * 4u + d] = o[d];
            }
        }
        lse[at] = r.top[g] + log(r.sum[g]);
    }
}

// One tile of keys: scores, online softmax, values. Keys after the row's position count for nothing; reading past the
// last key of the tile's rows is avoided, so that unused slots may hold anything.
fn attend(r: ptr<function, Row>, head_of: array<u32, KEYS / RUN>, key0: u32, position: u32, last: u32, lane: u32) {
    var heads = head_of;
    var s: array<array<f32, KEYS>, GROUP>;
    for (var t = 0u; t < KEYS; t++) {
        let key = min(key0 + t, last);
        let at = k_at(heads[t / RUN], 0u, key % BLOCK_SIZE);
        for (var c = 0u; c < CHUNKS; c += SPAN) {
            let k = key_span(at, c, lane);
            for (var g = 0u; g < GROUP; g++) {
                for (var i = 0u; i < 2u * SPAN; i++) {
                    let qv = (*r).q[g][c * 2u + i];
                    var x = s[g][t];
                    x = fma(qv.x, k[i].x, x);
                    x = fma(qv.y, k[i].y, x);
                    x = fma(qv.z, k[i].z, x);
                    s[g][t] = fma(qv.w, k[i].w, x);
                }
            }
        }
    }
    for (var g = 0u; g < GROUP; g++) {
        var top = (*r).top[g];
        for (var t = 0u; t < KEYS; t++) {
            s[g][t] = select(LOWEST, s[g][t], key0 + t <= position);
            top = max(top, s[g][t]);
        }
        let shrink = exp((*r).top[g] - top);
        (*r).top[g] = top;
        var sum = (*r).sum[g] * shrink;
        for (var t = 0u; t < KEYS; t++) {
            s[g][t] = select(0.0, exp(s[g][t] - top), key0 + t <= position);
            sum += s[g][t];
        }
        (*r).sum[g] = sum;
        for (var i = 0u; i < QUADS; i++) {
            (*r).o[g][i] *= shrink;
        }
    }
    for (var t = 0u; t < KEYS; t++) {
        if (key0 + t <= last) {
            let at = v_at(heads[t / RUN], 0u, (key0 + t) % BLOCK_SIZE);
            for (var c = 0u; c < CHUNKS; c += SPAN) {
                let v = value_span(at, c, lane);
                for (var g = 0u; g < GROUP; g++) {
                    for (var i = 0u; i < 2u * SPAN; i++) {
                        (*r).o[g][c * 2u + i] = fma(vec4(s[g][t]), v[i], (*r).o[g][c * 2u + i]);
                    }
                }
            }
        }
    }
}
