// Rows of the embedding, dequantised, times a factor.
//   tokens [rows] u32
//   w      as in the weights module: a token is a column
//   out    [rows, width] f32, width a multiple of 4
// One lane makes one block of 32, of the last as much as there is. CPU reference: src/cpu/embed.rs
#import weights = weights_q8
#import flat
override WG: u32 = 64u;

// `first` and `cols`: the tokens this shard of the matrix holds.
struct EmbedParams {
    rows: u32,
    first: u32,
    cols: u32,
    width: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: EmbedParams;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
const WQ: u32 = 2u;
const WS: u32 = 3u;
#import planes = planes_buffers
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn embed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let blocks = (params.width + 31u) / 32u;
    let row = id / blocks;
    let block = id % blocks;
    if (row >= params.rows) {
        return;
    }
    let token = tokens[row];
    if (token < params.first || token >= params.first + params.cols) {
        return;
    }
    let w = load_block(block, token - params.first, params.cols, blocks);
    let quads = params.width / 4u;
    for (var i = 0u; i < min(8u, quads - block * 8u); i++) {
        out[row * quads + block * 8u + i] = params.scale * quad(w, i);
    }
}
