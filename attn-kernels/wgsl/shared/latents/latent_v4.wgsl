// Latents of v4_slots, which become eight f16 a word.
#import latent_halves
#import v4_units

fn latent_word_of(stored: latent_stored, other: latent_stored, word: u32) -> latent_word {
    let eight = elements_of(stored, other, word);
    return vec4(
        pack2x16float(eight.low.xy), pack2x16float(eight.low.zw), pack2x16float(eight.high.xy), pack2x16float(eight.high.zw),
    );
}
