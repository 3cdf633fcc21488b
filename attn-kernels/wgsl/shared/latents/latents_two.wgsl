// Latents of two caches under one softmax, by lists of slots: a window of raw tokens, then compressed ones (DeepSeek V4).
//   latents, compressed        [slots, LATENT + ROPE]
//   window_slots, compressed_slots  a list of list_stride, compressed_stride u32 for each row from first_row on
//   rows    -, keys, how many of them are in the window's list, 0
@group(0) @binding(2) var<storage, read> latents: array<latent_stored>;
@group(0) @binding(3) var<storage, read> compressed: array<latent_stored>;
@group(0) @binding(7) var<storage, read> window_slots: array<u32>;
@group(0) @binding(8) var<storage, read> compressed_slots: array<u32>;

// Marks slots of the compressed cache.
const COMPRESSED: u32 = 0x80000000u;

fn latents_begin(row: vec4<u32>, index: u32) -> u32 {
    return 0u;
}

fn latents_end(row: vec4<u32>, index: u32) -> u32 {
    return row.y;
}

fn latent_slot(row: vec4<u32>, index: u32, key: u32) -> u32 {
    if (key < row.z) {
        return window_slots[(params.first_row + index) * params.list_stride + key];
    }
    return compressed_slots[(params.first_row + index) * params.compressed_stride + key - row.z] | COMPRESSED;
}

fn latent_at(slot: u32, word: u32) -> latent_word {
    if (slot >= COMPRESSED) {
        let entry = slot - COMPRESSED;
        return latent_word_of(compressed[latent_unit(entry, word)], compressed[latent_other(entry, word)], word);
    }
    return latent_word_of(latents[latent_unit(slot, word)], latents[latent_other(slot, word)], word);
}
