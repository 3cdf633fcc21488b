// Sums of consecutive rows, as pooled embeddings need them: out[s] = sum of x[first + i], i < len.
//   x [rows, 4 * quads] f32;  segments [n] first row and number of rows;  out [n, 4 * quads] f32
// A workgroup sums 16 quads of a segment: 16 lanes a quad take every 16th row, then add up in pairs.
// Grid: (ceil(quads / 16), segments, 1). Bytes moved: 16 * quads * (len + 1) a segment.
// CPU reference: src/cpu/segment_sum.rs

struct SegmentSumParams { segments: u32, quads: u32 }

@group(0) @binding(0) var<uniform> params: SegmentSumParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> segments: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

const QUADS: u32 = 16u;
const LANES: u32 = 16u;

var<workgroup> sums: array<vec4<f32>, QUADS * LANES>;

@compute @workgroup_size(QUADS * LANES)
fn segment_sum(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let quad = group.x * QUADS + lane % QUADS;
    let segment = segments[group.y];
    var sum = vec4(0.0);
    if (quad < params.quads) {
        for (var row = lane / QUADS; row < segment.y; row += LANES) {
            sum += x[(segment.x + row) * params.quads + quad];
        }
    }
    sums[lane] = sum;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half * QUADS) {
            sums[lane] += sums[lane + half * QUADS];
        }
    }
    if (lane < QUADS && quad < params.quads) {
        out[group.y * params.quads + quad] = sums[lane];
    }
}
