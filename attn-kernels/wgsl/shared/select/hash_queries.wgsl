// Vectors to hash: means of the queries of a KV head, by row of q. Codes are [n, kv_head, words].
struct KeyChunk { low: vec4<f32>, high: vec4<f32> }

@group(0) @binding(2) var<storage, read> q: array<f32>;

fn is_held(row: u32) -> bool {
    return row != NO_ENTRY;
}

fn vector_chunk(row: u32, head: u32, chunk: u32) -> KeyChunk {
    var sum = KeyChunk(vec4(0.0), vec4(0.0));
    for (var g = 0u; g < params.group; g++) {
        let at = row * params.q_stride + (head * params.group + g) * HEAD_DIM + chunk * 8u;
        sum.low += vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
        sum.high += vec4(q[at + 4u], q[at + 5u], q[at + 6u], q[at + 7u]);
    }
    return KeyChunk(sum.low / f32(params.group), sum.high / f32(params.group));
}

fn code_of(index: u32, row: u32, head: u32) -> u32 {
    return index * params.num_kv_heads + head;
}
