// Rows of the embedding, dequantised.
//   tokens [rows] u32
//   w      as in the weights module: a token is a column
//   out    [rows, 32 * blocks] f32
// One lane makes one block of 32. CPU reference: src/cpu/embed.rs
#import weights = weights_q8
#import flat
override WG: u32 = 64u;

// `first` and `cols`: the tokens this shard of the matrix holds.
struct EmbedParams { rows: u32, first: u32, cols: u32, blocks: u32 }

@group(0) @binding(0) var<uniform> params: EmbedParams;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read> wq: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> ws: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn embed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let row = id / params.blocks;
    let block = id % params.blocks;
    if (row >= params.rows) {
        return;
    }
    let token = tokens[row];
    if (token < params.first || token >= params.first + params.cols) {
        return;
    }
    let w = load_block(block, token - params.first, params.cols, params.blocks);
    for (var i = 0u; i < 8u; i++) {
        out[id * 8u + i] = quad(w, i);
    }
}
