// Stores digests of keys in f16, rounded as what they are for asks.
#import halves = halves_exact
@group(0) @binding(3) var<storage, read_write> digests: array<u32>;

// Channels 2 * pair on, counted through the pool, of vector v of a digest.
fn store_pair(pair: u32, v: u32, channels: vec2<f32>) {
    digests[pair] = halves_of(channels, v);
}
