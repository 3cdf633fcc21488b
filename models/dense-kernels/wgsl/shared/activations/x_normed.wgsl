// Activations at one address for all lanes, through an RMS norm on the way: the arithmetic of rms_norm.wgsl, in the
// same order, so that it does not matter which of the two norms a row.
//   x [rows, x_stride] vec4<f32>;  norm [32 * blocks] f32
#import inverse_root
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> norm: array<vec4<f32>>;

var<workgroup> factors: array<f32, ROWS>;

// The norm's factor of each row of the workgroup. Every lane of the workgroup calls it.
fn prepare(place: Place, lane: Lane) {
    var squares: Values;
    for (var r = 0u; r < ROWS; r++) {
        let row = x_row(place, r) / 4u;
        var sum = 0.0;
        for (var i = lane.index; i < params.blocks * 32u; i += WG) {
            let v = x[row + i / 4u][i % 4u];
            sum = fma(v, v, sum);
        }
        squares[r] = sum;
    }
    squares = reduce_add(squares, lane);
    if (lane.index == 0u) {
        for (var r = 0u; r < ROWS; r++) {
            factors[r] = inverse_root(squares[r] / f32(params.blocks * 32u) + params.eps);
        }
    }
    workgroupBarrier();
}

// Eight activations of row r of the workgroup from k = 8 * octet on.
fn x_octet(place: Place, r: u32, octet: u32, lane: u32) -> array<vec4<f32>, 2> {
    let at = x_row(place, r) / 4u + octet * 2u;
    let factor = factors[r];
    return array(x[at] * factor * norm[octet * 2u], x[at + 1u] * factor * norm[octet * 2u + 1u]);
}
