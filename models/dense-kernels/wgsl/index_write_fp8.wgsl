// Writes one vector of every row into a cache of fp8 index keys: rotated, in codes with a scale.
//   x     rows of row_stride f32, the vector from `first` on;  slots [rows] i32 physical slots, -1 = skip
//   keys  pages of BLOCK_SIZE * HEAD_DIM codes, then BLOCK_SIZE f32 scales, as u32
// One workgroup a row. Grid: n folded. Bytes moved: 5 * HEAD_DIM + 8 a row. CPU reference: src/cpu/index_write_fp8.rs
#import HEAD_DIM = 128
#import BLOCK_SIZE = 64
#import index_code

struct IndexWriteFp8Params { rows: u32, row_stride: u32, first: u32, root: f32 }

@group(0) @binding(0) var<uniform> params: IndexWriteFp8Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> slots: array<i32>;
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;

const WORDS: u32 = HEAD_DIM / 4u;

@compute @workgroup_size(WG)
fn index_write_fp8(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = group.y * 65535u + group.x;
    if (row >= params.rows) {
        return;
    }
    for (var i = lane.index; i < HEAD_DIM; i += WG) {
        vector[i] = x[row * params.row_stride + params.first + i];
    }
    let scale = rotate(params.root, lane);
    if (slots[row] < 0) {
        return;
    }
    let slot = u32(slots[row]);
    let page = slot / BLOCK_SIZE * BLOCK_SIZE * (WORDS + 1u);
    let offset = slot % BLOCK_SIZE;
    for (var i = lane.index; i < WORDS; i += WG) {
        keys[page + offset * WORDS + i] = four_codes(i, scale);
    }
    if (lane.index == 0u) {
        keys[page + BLOCK_SIZE * WORDS + offset] = bitcast<u32>(scale);
    }
}
