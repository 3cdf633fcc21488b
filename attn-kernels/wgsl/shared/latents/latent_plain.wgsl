// Latents stored as the kernel keeps them.
alias latent_stored = latent_word;

// Units of a slot: words.
const SLOT: u32 = WORDS;

// There are no scales: the unit itself.
fn latent_scales(at: u32) -> u32 {
    return at;
}

fn latent_word_of(stored: latent_stored, scales: latent_stored, word: u32) -> latent_word {
    return stored;
}
