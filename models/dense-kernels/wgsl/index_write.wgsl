// Writes one vector of every row into the K buffer of a paged cache with one KV head: keys of an indexer.
//   x     rows of row_stride f32, the vector from `first` on;  slots [rows] i32 physical slots, -1 = skip
//   keys  [num_blocks, HEAD_DIM / CHUNK, BLOCK_SIZE, CHUNK] of f16 in pairs (CHUNK = 8) or f32 (CHUNK = 4), as u32
// One lane writes two elements. CPU reference: src/cpu/index_write.rs
#import HEAD_DIM = 128
#import BLOCK_SIZE = 64
#import CHUNK = 8
#import flat
override WG: u32 = 64u;

struct IndexWriteParams { rows: u32, row_stride: u32, first: u32 }

@group(0) @binding(0) var<uniform> params: IndexWriteParams;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> slots: array<i32>;
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;

@compute @workgroup_size(WG)
fn index_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let d = id % (HEAD_DIM / 2u) * 2u;
    let row = id / (HEAD_DIM / 2u);
    if (row >= params.rows || slots[row] < 0) {
        return;
    }
    let slot = u32(slots[row]);
    let chunk = slot / BLOCK_SIZE * (HEAD_DIM / CHUNK) + d / CHUNK;
    let at = (chunk * BLOCK_SIZE + slot % BLOCK_SIZE) * CHUNK + d % CHUNK;
    let source = row * params.row_stride + params.first + d;
    if (CHUNK == 8u) {
        keys[at / 2u] = pack2x16float(vec2(x[source], x[source + 1u]));
    } else {
        keys[at] = bitcast<u32>(x[source]);
        keys[at + 1u] = bitcast<u32>(x[source + 1u]);
    }
}
