// Latents in f32, four elements a word.
#import latent_plain
alias latent_word = vec4<f32>;
const WORD: u32 = 4u;

// Product with the queries from q[at] on.
fn word_dot(word: latent_word, at: u32) -> f32 {
    return dot(q[at], word);
}

// Four elements, those of `quad` in a row of words.
fn word_quad(word: latent_word, quad: u32) -> vec4<f32> {
    return word;
}
