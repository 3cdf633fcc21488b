// Stores eight elements in f32, chunk `at` of the cache.
@group(0) @binding(3) var<storage, read_write> latents: array<vec4<f32>>;

fn store_chunk(at: u32, low: vec4<f32>, high: vec4<f32>) {
    latents[at * 2u] = low;
    latents[at * 2u + 1u] = high;
}
