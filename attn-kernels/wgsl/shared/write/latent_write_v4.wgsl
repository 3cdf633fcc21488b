// Stores eight elements as codes of fp8 or as bf16, slots of v4_slots.
#import code_fp8
#import scale_ue8m0
#import v4_slots
@group(0) @binding(3) var<storage, read_write> latents: array<vec2<u32>>;

// Elements that share the scale of a chunk: of each 64 codes.
fn scaled_with(chunk: u32) -> vec2<u32> {
    let begin = min(chunk / 8u * 64u, LATENT - PLAIN);
    return vec2(begin, min(begin + 64u, LATENT - PLAIN));
}

fn store_chunk(slot: u32, chunk: u32, first: u32, most: f32, low: vec4<f32>, high: vec4<f32>) {
    let at = slot * SLOT + chunk;
    if (chunk >= CODED) {
        latents[at + chunk - CODED] = vec2(plain_pair(low.xy), plain_pair(low.zw));
        latents[at + chunk - CODED + 1u] = vec2(plain_pair(high.xy), plain_pair(high.zw));
        return;
    }
    let scale = scale_of(most);
    latents[at] = vec2(codes_of(low / scale), codes_of(high / scale));
    // One lane writes the bytes of all scales.
    if (chunk == 0u) {
        var exponents = array(0u, 0u);
        for (var part = 0u; part * 8u < CODED; part++) {
            let exponent = bitcast<u32>(scale_of(largest(first, scaled_with(part * 8u)))) >> 23u;
            exponents[part / 4u] |= exponent << (part % 4u * 8u);
        }
        latents[slot * SLOT + SLOT - 1u] = vec2(exponents[0], exponents[1]);
    }
}

// Two elements to the nearest bf16, ties to even.
fn plain_pair(x: vec2<f32>) -> u32 {
    let bits = bitcast<vec2<u32>>(x);
    let rounded = (bits + vec2(0x7fffu) + ((bits >> vec2(16u)) & vec2(1u))) >> vec2(16u);
    return rounded.x | (rounded.y << 16u);
}
