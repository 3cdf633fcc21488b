// Latents of latent_v4, eight f16 a word as matrices take them.
#import v4_units

struct latent_word { low: vec4<f16>, high: vec4<f16> }

const WORD: u32 = 8u;

fn latent_word_of(stored: latent_stored, other: latent_stored, word: u32) -> latent_word {
    let eight = elements_of(stored, other, word);
    return latent_word(vec4<f16>(eight.low), vec4<f16>(eight.high));
}
