// Latents in f32, four elements a word.
#import latent_plain
alias latent_word = vec4<f32>;
const WORD: u32 = 4u;

// Four elements, those of `quad` in a row of words.
fn word_quad(word: latent_word, quad: u32) -> vec4<f32> {
    return word;
}
