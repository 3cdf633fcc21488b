// Latents of a row through its block table, all or those of a list.
//   latents [num_blocks, BLOCK_SIZE], slots of the element module;  tables physical block ids
//   rows    -, KV length, first entry of the block table, first key that the row sees
#import context = context_full

@group(0) @binding(2) var<storage, read> latents: array<latent_stored>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;

// Index of the first key of row `index` of the dispatch.
fn latents_begin(row: vec4<u32>, index: u32) -> u32 {
    return context_begin(context_of(params.first_row + index), row.w);
}

fn latents_end(row: vec4<u32>, index: u32) -> u32 {
    return context_end(context_of(params.first_row + index), row.y);
}

// Place of the latent of key `key`.
fn latent_slot(row: vec4<u32>, index: u32, key: u32) -> u32 {
    let position = context_position(context_of(params.first_row + index), key);
    return tables[row.z + position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
}

fn latent_at(slot: u32, word: u32) -> latent_word {
    return latent_word_of(latents[latent_unit(slot, word)], latents[latent_other(slot, word)], word);
}
