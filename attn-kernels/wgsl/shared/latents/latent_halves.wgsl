// Latents in f16, eight elements a word.
alias latent_word = vec4<u32>;
const WORD: u32 = 8u;

// Four elements, those of `quad` in a row of words.
fn word_quad(word: latent_word, quad: u32) -> vec4<f32> {
    let half = select(word.xy, word.zw, quad % 2u == 1u);
    return vec4(unpack2x16float(half.x), unpack2x16float(half.y));
}
