// Split-KV merge of decode: puts the partitions of paged_decode, or of mla_decode, together.
//   partial  [n, num_heads, max_partitions, head_dim] f32;  stats [n, num_heads, max_partitions] (max, sum)
//   rows     [first_row + n] vec4<u32>: row of out, KV length, -, first key that it sees
//   out      [rows, num_heads, head_dim] f32
//   selected as in paged_decode;  sinks [num_heads] f32, logits of the attention sinks
// Lanes share the partitions of a head and merge them online, then add up in a fixed order. Grid: (num_heads, n).
// Bytes moved: 4 * head_dim + 8 for each head and partition, 4 * head_dim for each head.
// CPU reference: src/cpu/paged_reduce.rs
#import numbers
#import HEAD_DIM = 64
#import SELECTED = 5
#import context = context_full
#import SINKS = 5
#import sinks = sinks_none
// Partitions in flight a lane.
#import AHEAD = 8
override WG: u32 = 256u;

struct PagedReduceParams {
    num_heads: u32,
    num_kv_heads: u32,
    max_partitions: u32,
    list_stride: u32,
    first_row: u32,
    partition_size: u32, // in keys
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: PagedReduceParams;
@group(0) @binding(1) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;

// (largest logit, sum of exponentials) and weighted values of a lane.
var<workgroup> stat_of: array<vec2<f32>, WG>;
var<workgroup> merge: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn paged_reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[params.first_row + group.y];
    let kv_head = group.x / (params.num_heads / params.num_kv_heads);
    let context = context_of((params.first_row + group.y) * params.num_kv_heads + kv_head);
    let begin = context_begin(context, row.w);
    let end = context_end(context, row.y);
    let size = params.partition_size;
    let partitions = select(0u, (end + size - 1u) / size - begin / size, begin < end);
    let head = (group.y * params.num_heads + group.x) * params.max_partitions;
    // Lanes of a side take the same partitions, each four dimensions of them.
    let quad = lane % QUADS;
    let side = lane / QUADS;
    let sides = WG / QUADS;
    var top = LOWEST;
    var sum = vec4(0.0);
    var weight = 0.0;
    if (side < sides) {
        for (var first = side; first < partitions; first += sides * AHEAD) {
            var stat: array<vec2<f32>, AHEAD>;
            var x: array<vec4<f32>, AHEAD>;
            #unroll i < AHEAD
                let p = head + min(first + i * sides, partitions - 1u);
                stat[i] = stats[p];
                x[i] = partial[p * QUADS + quad];
            #end
            var most = top;
            #unroll i < AHEAD
                most = max(most, stat[i].x);
            #end
            let shrink = exp(top - most);
            top = most;
            sum *= shrink;
            weight *= shrink;
            #unroll i < AHEAD
                let w = select(0.0, exp(stat[i].x - top), first + i * sides < partitions);
                sum = fma(vec4(w), x[i], sum);
                weight = fma(w, stat[i].y, weight);
            #end
        }
    }
    merge[lane] = sum;
    stat_of[lane] = vec2(top, weight);
    workgroupBarrier();
    if (lane < QUADS) {
        let sink = sink_of(group.x);
        var most = max(top, sink);
        for (var i = 1u; i < sides; i++) {
            most = max(most, stat_of[i * QUADS + lane].x);
        }
        sum = vec4(0.0);
        weight = 0.0;
        for (var i = 0u; i < sides; i++) {
            let other = stat_of[i * QUADS + lane];
            let w = exp(other.x - most);
            sum = fma(vec4(w), merge[i * QUADS + lane], sum);
            weight = fma(w, other.y, weight);
        }
        let total = weight + select(0.0, exp(sink - most), sink > LOWEST);
        out[(row.x * params.num_heads + group.x) * QUADS + lane] = select(sum / total, vec4(0.0), weight == 0.0);
    }
}
