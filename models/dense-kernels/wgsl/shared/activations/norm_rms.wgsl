// Rows after an RMS norm.
//   weight [32 * blocks] f32
#import inverse_root
@group(0) @binding(WEIGHT) var<storage, read> weight: array<vec4<f32>>;

fn row_factor(row: u32, lane: Lane) -> f32 {
    var squares = vec4<f32>();
    for (var i = lane.index; i < params.blocks * 8u; i += WG) {
        let v = x[row * params.x_stride + i];
        squares = fma(v, v, squares);
    }
    let sum = squares.x + squares.y + (squares.z + squares.w);
    return inverse_root(reduce_add(Values(sum), lane)[0] / f32(params.blocks * 32u) + params.eps);
}

fn normed(v: vec4<f32>, factor: f32, at: u32) -> vec4<f32> {
    return v * factor * weight[at];
}
