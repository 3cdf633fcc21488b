// Writes of codes, for latent_write_fp8 and latent_write_int8: codes of a slot, and the scale of each of its two parts.
@group(0) @binding(3) var<storage, read_write> latents: array<vec2<u32>>;

// Units of a slot: eight codes, and the scales.
const SLOT: u32 = (LATENT + ROPE) / 8u + 1u;

// Elements of its part that share the scale of a chunk: all.
fn scaled_with(chunk: u32) -> vec2<u32> {
    return vec2(0u, select(ROPE, LATENT, chunk < LATENT / 8u));
}

fn store_chunk(slot: u32, chunk: u32, first: u32, most: f32, low: vec4<f32>, high: vec4<f32>) {
    let scale = max(most / MAX_CODE, 1e-6);
    latents[slot * SLOT + chunk] = vec2(codes_of(low / scale), codes_of(high / scale));
    // The first chunk of a part keeps its scale.
    if (chunk == 0u) {
        latents[slot * SLOT + SLOT - 1u].x = bitcast<u32>(scale);
    }
    if (chunk == LATENT / 8u) {
        latents[slot * SLOT + SLOT - 1u].y = bitcast<u32>(scale);
    }
}
