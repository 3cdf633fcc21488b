// Stores eight elements in f32.
@group(0) @binding(3) var<storage, read_write> latents: array<vec4<f32>>;

const PART_SCALES: bool = false;

fn part_scale(most: f32) -> f32 {
    return 1.0;
}

fn store_chunk(slot: u32, chunk: u32, scale: f32, low: vec4<f32>, high: vec4<f32>) {
    let at = (slot * ((LATENT + ROPE) / 8u) + chunk) * 2u;
    latents[at] = low;
    latents[at + 1u] = high;
}
