// The k largest scores of long rows, params.chunk scores a workgroup, after the four dispatches of top_k_count. Output and
// order are those of top_k.
//   scores, rows, table, out  as of top_k
//   cuts, tallies  as top_k_count left them
//   counts   those of the first digit are set to zero for the next time
// Grid: (max_chunks, n folded). Bytes moved: 4 * scores a row, and the output. CPU reference: src/cpu/top_k_gather.rs
#import order_key
#import radix
#import top_k_write
#import transform = transform_none
#import out = out_list
#import scan = scan_tree

struct TopKGatherParams {
    rows: u32,
    out_stride: u32,
    copies: u32,
    page_size: u32,
    max_chunks: u32,
    chunk: u32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> params: TopKGatherParams;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read> cuts: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> tallies: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> counts: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn top_k_gather(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let index = group.z * 65535u + group.y;
    if (index >= params.rows) {
        return;
    }
    let row = rows[index];
    let place = place_of(lane);
    let first = group.x * params.chunk;
    let end = min(first + params.chunk, row.y);
    let count = min(row.y, row.z);
    if (group.x == 0u) {
        for (var i = place; i < BINS; i += WG) {
            counts[index * DIGITS * BINS + i] = 0u;
        }
        out_finish(index, count, place);
    }
    if (first >= row.y || count == 0u) {
        return;
    }
    if (count == row.y) {
        for (var i = first + place; i < end; i += WG) {
            out_put(index, row.w, i, i);
        }
        return;
    }
    // A row has at most WG chunks.
    var mine = vec2(0u);
    if (place < group.x) {
        mine = tallies[index * params.max_chunks + place];
    }
    let before = Tally(scan(mine.x, lane).total, scan(mine.y, lane).total);
    let cut = cuts[index * 4u + DIGITS];
    write_range(index, row, vec2(first, end), before, Cut(cut.x, cut.y), lane);
}
