// Index vectors as published: rotated by Hadamard's matrix over the square root of their length, then codes of fp8 e4m3 with a
// scale that is a power of two. The rotation spreads outliers and keeps dot products.
#import code_fp8
#import scale_ue8m0

const WG: u32 = 64u;
const VALUES: u32 = 1u;
#import reduce_tree

var<workgroup> vector: array<f32, HEAD_DIM>;

// Rotates the vector that the lanes have put into workgroup memory, and returns the scale of its codes. `root` is
// 1 / sqrt(HEAD_DIM). Every lane of the workgroup calls it.
fn rotate(root: f32, lane: Lane) -> f32 {
    for (var half = 1u; half < HEAD_DIM; half *= 2u) {
        workgroupBarrier();
        for (var pair = lane.index; pair < HEAD_DIM / 2u; pair += WG) {
            let low = pair / half * 2u * half + pair % half;
            let a = vector[low];
            let b = vector[low + half];
            vector[low] = a + b;
            vector[low + half] = a - b;
        }
    }
    workgroupBarrier();
    var amax: Values;
    for (var i = lane.index; i < HEAD_DIM; i += WG) {
        vector[i] *= root;
        amax[0] = max(amax[0], abs(vector[i]));
    }
    return scale_of(reduce_max(amax, lane)[0]);
}

// Codes of elements 4 * i on.
fn four_codes(i: u32, scale: f32) -> u32 {
    let at = 4u * i;
    return codes_of(vec4(vector[at], vector[at + 1u], vector[at + 2u], vector[at + 3u]) / scale);
}
