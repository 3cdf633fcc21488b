// Stores eight elements in f16.
@group(0) @binding(3) var<storage, read_write> latents: array<vec4<u32>>;

const PART_SCALES: bool = false;

fn part_scale(most: f32) -> f32 {
    return 1.0;
}

fn store_chunk(slot: u32, chunk: u32, scale: f32, low: vec4<f32>, high: vec4<f32>) {
    latents[slot * ((LATENT + ROPE) / 8u) + chunk] =
        vec4(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}
