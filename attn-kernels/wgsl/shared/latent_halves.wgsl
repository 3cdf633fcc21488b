// Latents in f16, eight elements a word.
alias latent_word = vec4<u32>;
const WORD: u32 = 8u;

// Product with the queries from q[at] on.
fn word_dot(word: latent_word, at: u32) -> f32 {
    return dot(q[at], vec4(unpack2x16float(word.x), unpack2x16float(word.y)))
        + dot(q[at + 1u], vec4(unpack2x16float(word.z), unpack2x16float(word.w)));
}

// Four elements, those of `quad` in a row of words.
fn word_quad(word: latent_word, quad: u32) -> vec4<f32> {
    let half = select(word.xy, word.zw, quad % 2u == 1u);
    return vec4(unpack2x16float(half.x), unpack2x16float(half.y));
}
