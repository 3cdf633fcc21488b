// Keys and values of sequences out of the paged cache, as contiguous f32: all of them, or those of listed blocks.
//   spans   [n] vec4<u32>: first key in the order of `context`, KV length, first row of the output, first entry of the
//           block table; without lists the order is that of positions
//   tables  physical block ids
//   k_out, v_out  [rows, num_kv_heads, HEAD_DIM] f32; where a head's list is shorter than another's, zero
//   selected lists of blocks, [n, num_kv_heads]: see context_blocks
// One lane moves eight elements of one key and its value. Grid: (ceil(most keys * heads * HEAD_DIM / 8 / WG), n).
// Bytes moved: keys * num_kv_heads * HEAD_DIM * (2 * element + 8). CPU reference: src/cpu/gather_cache.rs
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import kv = kv_f16
#import SELECTED = 7
#import context = context_full
override WG: u32 = 64u;

struct GatherCacheParams {
    num_kv_heads: u32,
    list_stride: u32,
    k_scale: f32, // of fp8
    v_scale: f32,
    max_keys: u32,
    spans: u32,
}

@group(0) @binding(0) var<uniform> params: GatherCacheParams;
@group(0) @binding(1) var<storage, read> spans: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read_write> k_out: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> v_out: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn gather_cache(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let chunks = HEAD_DIM / 8u;
    let span = spans[group.y];
    let id = group.x * WG + lane;
    let chunk = id % chunks;
    let head = id / chunks % params.num_kv_heads;
    let key = id / chunks / params.num_kv_heads;
    if (key >= params.max_keys) {
        return;
    }
    // A list may be longer than another head's: rows reach to the longest.
    var longest = 0u;
    for (var h = 0u; h < params.num_kv_heads; h++) {
        longest = max(longest, context_end(context_of(group.y * params.num_kv_heads + h), span.y));
    }
    let index = span.x + key;
    if (index >= longest) {
        return;
    }
    let to = (((span.z + key) * params.num_kv_heads + head) * HEAD_DIM + chunk * 8u) / 4u;
    let context = context_of(group.y * params.num_kv_heads + head);
    if (index >= context_end(context, span.y)) {
        k_out[to] = vec4(0.0);
        k_out[to + 1u] = vec4(0.0);
        v_out[to] = vec4(0.0);
        v_out[to + 1u] = vec4(0.0);
        return;
    }
    let position = context_position(context, index);
    let block_head = tables[span.w + position / BLOCK_SIZE] * params.num_kv_heads + head;
    let offset = position % BLOCK_SIZE;
    let k = k_load(k_at(block_head, chunk, offset));
    let v = v_load(v_at(block_head, chunk, offset));
    let k_scale = k_factor(block_head, offset);
    let v_scale = v_factor(block_head, offset);
    k_out[to] = (kv_low(k) - KV_ZERO) * k_scale;
    k_out[to + 1u] = (kv_high(k) - KV_ZERO) * k_scale;
    v_out[to] = (kv_low(v) - KV_ZERO) * v_scale;
    v_out[to + 1u] = (kv_high(v) - KV_ZERO) * v_scale;
}
