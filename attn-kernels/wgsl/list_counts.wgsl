// Blocks that lists name, added up over runs of lists.
//   lists   lists of list_stride u32: count, blocks
//   spans   [n] vec2<u32>: first list, lists
//   counts  [n] u32 from `first` on
// Grid: (n). Bytes moved: 4 a list. CPU reference: src/cpu/list_counts.rs
struct ListCountsParams { list_stride: u32, first: u32, spans: u32 }

@group(0) @binding(0) var<uniform> params: ListCountsParams;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
@group(0) @binding(2) var<storage, read> spans: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> counts: array<u32>;

const WG: u32 = 64u;

var<workgroup> sums: array<u32, WG>;

@compute @workgroup_size(WG)
fn list_counts(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let span = spans[group.x];
    var sum = 0u;
    for (var i = lane; i < span.y; i += WG) {
        sum += lists[(span.x + i) * params.list_stride];
    }
    sums[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    if (lane == 0u) {
        counts[params.first + group.x] = sums[0];
    }
}
