// Rotates the queries and keys of a step and writes keys and values into the paged cache.
//   qkv      rows of (num_heads + 2 * num_kv_heads) * HEAD_DIM f32: queries, keys, values
//   bias     [num_heads + 2 * num_kv_heads, HEAD_DIM] f32, added to every row first; read with BIASED = 1 only
//   norm     [2, 2, HEAD_DIM] f32: factors of an RMS norm of each head, then what is added, for queries, then for keys; the first
//            `normed` heads are normed after the bias; read with NORMED = 1 only
//   cs       [rows, pairs] (cos, sin) of each row's position, made on the host in double precision; then [rows] a factor for
//            the row's queries, and 0
//   slots    [rows] i32 physical slots, -1 = skip
//   q        [rows, num_heads, HEAD_DIM] f32;  k_cache, v_cache: layouts of the kv module
// The first 2 * pairs dimensions of a head turn; INTERLEAVED = 1 pairs dimensions (2i, 2i + 1), else (i, i + pairs).
// With pairs = 0 nothing turns.
// Scales are those of cache_write: 1 in fp8, in int8 of each row and head.
// One lane makes eight elements of one head, and a workgroup has whole heads: their norms are made of its lanes' sums of squares,
// scales of heads of its lanes' maxima.
// CPU reference: src/cpu/rope_append.rs
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import INTERLEAVED = 0
#import BIASED = 0
#import NORMED = 0
#import kv = kv_write_f16
#import flat
#import inverse_root
#import WG = 64

struct RopeAppendParams {
    rows: u32,
    num_heads: u32,
    num_kv_heads: u32,
    pairs: u32,
    normed: u32, // heads
    eps: f32,
}

@group(0) @binding(0) var<uniform> params: RopeAppendParams;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> slots: array<i32>;
@group(0) @binding(5) var<storage, read> cs: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> q: array<f32>;
@group(0) @binding(7) var<storage, read> bias: array<f32>;
@group(0) @binding(8) var<storage, read> norm: array<f32>;

// Sums of squares, then maxima.
var<workgroup> of_lanes: array<f32, WG>;

@compute @workgroup_size(WG)
fn rope_append(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let chunks = HEAD_DIM / 8u;
    let heads = params.num_heads + 2u * params.num_kv_heads;
    let id = flat_index(group, lane);
    let chunk = id % chunks;
    let head = id / chunks % heads;
    let row = id / chunks / heads;
    let is_row = row < params.rows;
    let is_value = head >= params.num_heads + params.num_kv_heads;
    let first = lane - chunk;
    var factor = 1.0;
    if (NORMED == 1u) {
        var squares = 0.0;
        for (var i = 0u; is_row && i < 8u; i++) {
            let v = plain(row, head, chunk * 8u + i);
            squares = fma(v, v, squares);
        }
        of_lanes[lane] = squares;
        workgroupBarrier();
        squares = 0.0;
        for (var other = first; other < first + chunks; other++) {
            squares += of_lanes[other];
        }
        factor = inverse_root(squares / f32(HEAD_DIM) + params.eps);
        workgroupBarrier();
    }
    var x: array<f32, 8>;
    var most = 0.0;
    for (var i = 0u; is_row && i < 8u; i++) {
        let d = chunk * 8u + i;
        if (is_value) {
            x[i] = projected(row, head, d, factor);
        } else {
            x[i] = turned(row, head, d, factor);
        }
        most = max(most, abs(x[i]));
    }
    if (ROW_SCALES) {
        of_lanes[lane] = most;
        workgroupBarrier();
        for (var other = first; other < first + chunks; other++) {
            most = max(most, of_lanes[other]);
        }
    }
    if (!is_row) {
        return;
    }
    if (head < params.num_heads) {
        let scale = cs[params.rows * params.pairs + row].x;
        for (var i = 0u; i < 8u; i++) {
            q[(row * params.num_heads + head) * HEAD_DIM + chunk * 8u + i] = scale * x[i];
        }
        return;
    }
    let slot = slots[row];
    if (slot < 0) {
        return;
    }
    let kv_head = (head - params.num_heads) % params.num_kv_heads;
    let block_head = u32(slot) / BLOCK_SIZE * params.num_kv_heads + kv_head;
    let offset = u32(slot) % BLOCK_SIZE;
    let scale = stored_scale(most, 1.0);
    for (var i = 0u; i < 8u; i++) {
        x[i] *= 1.0 / scale;
    }
    let low = vec4(x[0], x[1], x[2], x[3]);
    let high = vec4(x[4], x[5], x[6], x[7]);
    if (is_value) {
        v_store(block_head, chunk, offset, low, high);
    } else {
        k_store(block_head, chunk, offset, low, high);
    }
    if (chunk == 0u && is_value) {
        v_store_scale(block_head, offset, scale);
    } else if (chunk == 0u) {
        k_store_scale(block_head, offset, scale);
    }
}

// Dimension `d` of a head, turned by its row's position.
fn turned(row: u32, head: u32, d: u32, factor: f32) -> f32 {
    let here = projected(row, head, d, factor);
    if (d >= 2u * params.pairs) {
        return here;
    }
    var pair = d % params.pairs;
    var second = d >= params.pairs;
    var other = select(d + params.pairs, d - params.pairs, second);
    if (INTERLEAVED == 1u) {
        pair = d / 2u;
        second = d % 2u == 1u;
        other = d ^ 1u;
    }
    let turn = cs[row * params.pairs + pair];
    let mine = here * turn.x;
    let theirs = projected(row, head, other, factor) * turn.y;
    return select(mine - theirs, mine + theirs, second);
}

// Dimension `d` of a head after the bias and the norm, which multiplies by `factor`.
fn projected(row: u32, head: u32, d: u32, factor: f32) -> f32 {
    let value = plain(row, head, d);
    if (NORMED == 1u && head < params.normed) {
        let at = select(0u, 2u * HEAD_DIM, head >= params.num_heads) + d;
        return value * factor * norm[at] + norm[at + HEAD_DIM];
    }
    return value;
}

fn plain(row: u32, head: u32, d: u32) -> f32 {
    let heads = params.num_heads + 2u * params.num_kv_heads;
    let value = qkv[(row * heads + head) * HEAD_DIM + d];
    if (BIASED == 1u) {
        return value + bias[head * HEAD_DIM + d];
    }
    return value;
}
