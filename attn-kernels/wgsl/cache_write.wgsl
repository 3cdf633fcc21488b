// Writes the keys and values of a step into the paged cache.
//   kv       rows of row_stride f32; keys of a row at k_start, values at v_start, [num_kv_heads, head_dim] each
//   slots    [rows] i32 physical slots, -1 = skip
//   k_cache  K layout of the kv module;  v_cache V layout
// Scales are of what the cache keeps: given ones of fp8, of int8 those of each row and head.
// One lane moves eight elements of one row and head.
// Bytes moved: 2 * rows * num_kv_heads * head_dim * (4 + element). CPU reference: src/cpu/cache_write.rs
#import kv = kv_write_f16
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import flat
override WG: u32 = 64u;

struct CacheWriteParams {
    rows: u32,
    num_kv_heads: u32,
    row_stride: u32, // f32
    k_start: u32,
    v_start: u32,
    k_scale: f32, // of fp8
    v_scale: f32,
}

@group(0) @binding(0) var<uniform> params: CacheWriteParams;
@group(0) @binding(1) var<storage, read> kv: array<f32>;
@group(0) @binding(2) var<storage, read> slots: array<i32>;

@compute @workgroup_size(WG)
fn cache_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let chunks = HEAD_DIM / 8u;
    let chunk = id % chunks;
    let head = (id / chunks) % params.num_kv_heads;
    let row = id / chunks / params.num_kv_heads;
    if (row >= params.rows) {
        return;
    }
    let slot = slots[row];
    if (slot < 0) {
        return;
    }
    let block_head = u32(slot) / BLOCK_SIZE * params.num_kv_heads + head;
    let offset = u32(slot) % BLOCK_SIZE;
    let at = row * params.row_stride + head * HEAD_DIM + chunk * 8u;
    let k = at + params.k_start;
    let v = at + params.v_start;
    let k_scale = stored_scale(most(k - chunk * 8u), params.k_scale);
    let v_scale = stored_scale(most(v - chunk * 8u), params.v_scale);
    if (chunk == 0u) {
        k_store_scale(block_head, offset, k_scale);
        v_store_scale(block_head, offset, v_scale);
    }
    k_store(block_head, chunk, offset, four(k) * (1.0 / k_scale), four(k + 4u) * (1.0 / k_scale));
    v_store(block_head, chunk, offset, four(v) * (1.0 / v_scale), four(v + 4u) * (1.0 / v_scale));
}

// Largest magnitude of the head from kv[at] on, where scales follow from it.
fn most(at: u32) -> f32 {
    var most = 0.0;
    for (var i = 0u; ROW_SCALES && i < HEAD_DIM; i++) {
        most = max(most, abs(kv[at + i]));
    }
    return most;
}

fn four(at: u32) -> vec4<f32> {
    return vec4(kv[at], kv[at + 1u], kv[at + 2u], kv[at + 3u]);
}
