// Activations of a tile of at most eight rows, each row through a uniform binding of its own, from which llvmpipe loads for all
// lanes at once: for rows of which one binding does not hold a tile.
//   x, x_1, .. [32 * blocks] f32: the rows of the tile, and the last one in place of those past it
@group(0) @binding(1) var<uniform> x: array<vec4<f32>, 4096>;
@group(0) @binding(5) var<uniform> x_1: array<vec4<f32>, 4096>;
@group(0) @binding(6) var<uniform> x_2: array<vec4<f32>, 4096>;
@group(0) @binding(7) var<uniform> x_3: array<vec4<f32>, 4096>;
@group(0) @binding(8) var<uniform> x_4: array<vec4<f32>, 4096>;
@group(0) @binding(9) var<uniform> x_5: array<vec4<f32>, 4096>;
@group(0) @binding(10) var<uniform> x_6: array<vec4<f32>, 4096>;
@group(0) @binding(11) var<uniform> x_7: array<vec4<f32>, 4096>;

fn prepare(place: Place, lane: Lane) {}

// Quad lane % 8 of a block of row r of the workgroup; r is a constant.
fn x_block(place: Place, r: u32, block: u32, lane: u32) -> vec4<f32> {
    let at = block * 8u + lane % 8u;
    switch r {
        case 1u: { return x_1[at]; }
        case 2u: { return x_2[at]; }
        case 3u: { return x_3[at]; }
        case 4u: { return x_4[at]; }
        case 5u: { return x_5[at]; }
        case 6u: { return x_6[at]; }
        case 7u: { return x_7[at]; }
        default: { return x[at]; }
    }
}
