// Score of a block: q . mean key, summed over the query heads of a set. Queries of a KV head have the same mean keys, so they
// are added up first, and the KV heads of a set are one long vector: its parts lie side by side in a digest.
const LANES: u32 = 16u;
// Quads of channels in flight a lane, and of queries in workgroup memory.
const AHEAD: u32 = 16u;
const TILE: u32 = LANES * AHEAD;

var<workgroup> q_sums: array<vec4<f32>, TILE>;
var<workgroup> parts: array<f32, WG>;

// The score for set `which`, in the first of the block's lanes. Every lane of the workgroup calls it.
fn score_of(index: u32, row: vec4<u32>, block: u32, in_range: bool, which: u32, lane: u32) -> f32 {
    let group = params.num_heads / params.num_kv_heads;
    let set_quads = params.heads_a_set / group * QUADS;
    var sum = vec4(0.0);
    for (var tile = 0u; tile < set_quads; tile += TILE) {
        let quads = min(TILE, set_quads - tile);
        workgroupBarrier();
        for (var i = lane; i < quads; i += WG) {
            q_sums[i] = q_sum(row, which * set_quads + tile + i, group);
        }
        workgroupBarrier();
        if (in_range) {
            sum += terms(row, block, which * set_quads + tile, quads, lane % LANES);
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
    var sum = vec4(0.0);
    for (var h = 0u; h < group; h++) {
        let at = row.x * params.q_stride + (quad / QUADS * group + h) * HEAD_DIM + quad % QUADS * 4u;
        sum += vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
    }
    return sum;
}

// One lane's share of the products with `quads` quads of channels from `first` on.
fn terms(row: vec4<u32>, block: u32, first: u32, quads: u32, lane: u32) -> vec4<f32> {
    let tokens = min(PAGES * BLOCK_SIZE, row.y - block * PAGES * BLOCK_SIZE);
    var sum = vec4(0.0);
    for (var page = 0u; page < pages_of(row, block); page++) {
        let at = tables[row.z + block * PAGES + page] * params.num_kv_heads * QUADS + first;
        var ahead: array<vec4<f32>, AHEAD>;
        for (var a = 0u; a < AHEAD; a++) {
            // Past the last quad it is read again and counts for nothing.
            ahead[a] = digests[at + min(lane + a * LANES, quads - 1u)];
        }
        var of_page = vec4(0.0);
        for (var a = 0u; a < AHEAD; a++) {
            if (lane + a * LANES < quads) {
                of_page = fma(q_sums[lane + a * LANES], ahead[a], of_page);
            }
        }
        let share = f32(min(BLOCK_SIZE, tokens - page * BLOCK_SIZE)) / f32(tokens);
        sum = fma(vec4(share), of_page, sum);
    }
    return sum;
}
