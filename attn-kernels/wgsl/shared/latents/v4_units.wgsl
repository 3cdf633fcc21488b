// Units that hold a word of v4_slots, bound as vec2<u32>: of codes and of their scales, or both of bf16.
#import code_fp8
#import v4_slots
alias latent_stored = vec2<u32>;

fn latent_unit(slot: u32, word: u32) -> u32 {
    return slot * SLOT + word + max(word, CODED) - CODED;
}

fn latent_other(slot: u32, word: u32) -> u32 {
    return select(slot * SLOT + SLOT - 1u, latent_unit(slot, word) + 1u, word >= CODED);
}

struct Elements { low: vec4<f32>, high: vec4<f32> }

// The eight elements of a word. Both readings are made and one is taken: with a branch here SwiftShader compiles mla_decode
// for minutes, in gigabytes.
fn elements_of(stored: latent_stored, other: latent_stored, word: u32) -> Elements {
    let part = word / 8u;
    let exponents = select(other.x, other.y, part >= 4u);
    let scale = bitcast<f32>(((exponents >> (part % 4u * 8u)) & 0xffu) << 23u);
    let is_coded = word < CODED;
    return Elements(
        select(four_plain(stored), values_of(stored.x) * scale, is_coded),
        select(four_plain(other), values_of(stored.y) * scale, is_coded),
    );
}

// Four elements of bf16.
fn four_plain(pairs: vec2<u32>) -> vec4<f32> {
    let bits = vec4(pairs.x << 16u, pairs.x & 0xffff0000u, pairs.y << 16u, pairs.y & 0xffff0000u);
    return bitcast<vec4<f32>>(bits);
}
