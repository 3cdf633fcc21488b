// Stores eight elements in f32.
@group(0) @binding(3) var<storage, read_write> latents: array<vec4<f32>>;

// Nothing has a scale.
fn scaled_with(chunk: u32) -> vec2<u32> {
    return vec2(0u);
}

fn store_chunk(slot: u32, chunk: u32, first: u32, most: f32, low: vec4<f32>, high: vec4<f32>) {
    let at = (slot * ((LATENT + ROPE) / 8u) + chunk) * 2u;
    latents[at] = low;
    latents[at + 1u] = high;
}
