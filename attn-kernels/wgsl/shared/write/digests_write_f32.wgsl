// Stores digests of keys in f32: as they are.
@group(0) @binding(3) var<storage, read_write> digests: array<vec2<f32>>;

// Channels 2 * pair on, counted through the pool, of vector v of a digest.
fn store_pair(pair: u32, v: u32, channels: vec2<f32>) {
    digests[pair] = channels;
}
