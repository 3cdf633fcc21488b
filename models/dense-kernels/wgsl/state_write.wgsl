// Writes the states of a compressor into their paged cache: `width` f32 of every row, as they are.
//   x       [rows, width] f32, width a multiple of 4;  slots [rows] i32 physical slots, -1 = skip
//   states  blocks of block_size tokens [width] f32, `page` vec4 from block to block
// One lane moves four elements. CPU reference: src/cpu/state_write.rs
#import flat
override WG: u32 = 64u;

struct StateWriteParams {
    rows: u32,
    quads: u32, // of a row
    block_size: u32,
    page: u32,
}

@group(0) @binding(0) var<uniform> params: StateWriteParams;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> slots: array<i32>;
@group(0) @binding(3) var<storage, read_write> states: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn state_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let row = id / params.quads;
    if (row >= params.rows || slots[row] < 0) {
        return;
    }
    let slot = u32(slots[row]);
    let token = slot / params.block_size * params.page + slot % params.block_size * params.quads;
    states[token + id % params.quads] = x[id];
}
