// Beside scores, the bounds that they are made of, for the certificate.
@group(0) @binding(6) var<storage, read_write> bounds: array<vec2<f32>>;

const KEEPS_BOUNDS: bool = true;

// A value that is no number, or more than f32 holds, bounds nothing.
fn keep_bound(at: u32, bound: f32, slack: f32) {
    bounds[at] = select(vec2(-LOWEST), vec2(bound, slack), vec2(bound, slack) < vec2(-LOWEST));
}
