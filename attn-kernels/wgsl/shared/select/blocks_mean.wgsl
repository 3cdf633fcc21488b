// Score of a block: q . mean key, summed over the query heads of a set. Queries of a KV head have the same mean keys, so they
// are added up first, and the KV heads of a set are one long vector: its parts lie side by side in a digest.
// Chunks of channels in flight a lane, and of queries in workgroup memory.
#import AHEAD = 8
const LANES: u32 = 16u;
const TILE: u32 = LANES * AHEAD;

var<workgroup> q_sums: array<vec4<f32>, TILE * 2u>;
var<workgroup> parts: array<f32, WG>;

alias Ahead = array<DigestChunk, AHEAD>;

// The score for set `which`, in the first of the block's lanes. Every lane of the workgroup calls it.
fn score_of(index: u32, row: vec4<u32>, block: u32, in_range: bool, which: u32, lane: u32) -> f32 {
    let group = params.num_heads / params.num_kv_heads;
    let set_chunks = params.heads_per_set / group * CHUNKS;
    var sum = vec4(0.0);
    for (var tile = 0u; tile < set_chunks; tile += TILE) {
        let first = which * set_chunks + tile;
        let chunks = min(TILE, set_chunks - tile);
        // Before the queries, so that one wait is for both.
        var ahead: Ahead;
        if (in_range) {
            ahead = load(row, block, 0u, first, chunks, lane % LANES);
        }
        workgroupBarrier();
        for (var i = lane; i < chunks * 2u; i += WG) {
            q_sums[i] = q_sum(row, first * 2u + i, group);
        }
        workgroupBarrier();
        if (in_range) {
            sum += terms(row, block, first, chunks, lane % LANES, ahead);
        }
    }
    parts[lane] = sum.x + sum.y + sum.z + sum.w;
    workgroupBarrier();
    var total = 0.0;
    if (lane % LANES == 0u) {
        for (var i = 0u; i < LANES; i++) {
            total += parts[lane + i];
        }
    }
    return total;
}

// Quad `quad` of all KV heads, of the queries of its KV head.
fn q_sum(row: vec4<u32>, quad: u32, group: u32) -> vec4<f32> {
    let quads = CHUNKS * 2u;
    var sum = vec4(0.0);
    for (var h = 0u; h < group; h++) {
        let at = row.x * params.q_stride + (quad / quads * group + h) * HEAD_DIM + quad % quads * 4u;
        sum += vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
    }
    return sum;
}

// A lane's share of `chunks` chunks of a page from `first` on. Past the last one it is read again and counts for nothing.
fn load(row: vec4<u32>, block: u32, page: u32, first: u32, chunks: u32, lane: u32) -> Ahead {
    let at = tables[row.z + block * PAGES + page] * params.num_kv_heads * CHUNKS + first;
    var ahead: Ahead;
    for (var a = 0u; a < AHEAD; a++) {
        ahead[a] = digest_chunk(at + min(lane + a * LANES, chunks - 1u));
    }
    return ahead;
}

// One lane's share of the products with `chunks` chunks of channels from `first` on, those of the first page loaded.
fn terms(row: vec4<u32>, block: u32, first: u32, chunks: u32, lane: u32, loaded: Ahead) -> vec4<f32> {
    let tokens = min(PAGES * BLOCK_SIZE, row.y - block * PAGES * BLOCK_SIZE);
    let pages = pages_of(row, block);
    var sum = vec4(0.0);
    var ahead = loaded;
    for (var page = 0u; page < pages; page++) {
        if (page > 0u) {
            ahead = load(row, block, page, first, chunks, lane);
        }
        var of_page = vec4(0.0);
        for (var a = 0u; a < AHEAD; a++) {
            let chunk = lane + a * LANES;
            if (chunk < chunks) {
                of_page = fma(q_sums[chunk * 2u], low_of(ahead[a]), of_page);
                of_page = fma(q_sums[chunk * 2u + 1u], high_of(ahead[a]), of_page);
            }
        }
        let share = f32(min(BLOCK_SIZE, tokens - page * BLOCK_SIZE)) / f32(tokens);
        sum = fma(vec4(share), of_page, sum);
    }
    return sum;
}
