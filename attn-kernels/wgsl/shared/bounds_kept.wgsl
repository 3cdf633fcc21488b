// Beside scores, the bounds that they are made of, for the certificate.
@group(0) @binding(6) var<storage, read_write> bounds: array<f32>;

const KEEPS_BOUNDS: bool = true;

fn keep_bound(at: u32, bound: f32) {
    bounds[at] = bound;
}
