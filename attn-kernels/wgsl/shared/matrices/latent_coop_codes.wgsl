// Staging of codes of latents, for latent_coop_fp8 and latent_coop_int8: slots of latent_codes.
struct latent_word { low: vec4<f16>, high: vec4<f16> }

alias latent_stored = vec2<u32>;

const WORD: u32 = 8u;
// Units of a slot: words, and the scales.
const SLOT: u32 = WORDS + 1u;

// Units of a word, and of its scales.
fn latent_unit(slot: u32, word: u32) -> u32 {
    return slot * SLOT + word;
}

fn latent_other(slot: u32, word: u32) -> u32 {
    return slot * SLOT + WORDS;
}

fn latent_word_of(stored: latent_stored, scales: latent_stored, word: u32) -> latent_word {
    let scale = bitcast<f32>(select(scales.x, scales.y, word >= LATENT / WORD));
    return latent_word(vec4<f16>(values_of(stored.x) * scale), vec4<f16>(values_of(stored.y) * scale));
}
