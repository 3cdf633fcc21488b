// Latents in f16, eight a word as matrices take them.
#import latent_plain

struct latent_word { low: vec4<f16>, high: vec4<f16> }

const WORD: u32 = 8u;
