// Codes of latents as latent_fp8 and latent_int8 both read them.
#import latent_halves
alias latent_stored = vec2<u32>;

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
    let low = values_of(stored.x) * scale;
    let high = values_of(stored.y) * scale;
    return vec4(
        pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw),
    );
}
