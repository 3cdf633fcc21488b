// Latents stored as the kernel keeps them.
alias latent_stored = latent_word;

fn latent_unit(slot: u32, word: u32) -> u32 {
    return slot * WORDS + word;
}

// There are no scales: the unit itself.
fn latent_other(slot: u32, word: u32) -> u32 {
    return slot * WORDS + word;
}

fn latent_word_of(stored: latent_stored, other: latent_stored, word: u32) -> latent_word {
    return stored;
}
