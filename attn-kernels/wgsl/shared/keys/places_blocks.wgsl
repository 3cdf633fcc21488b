// Places of the keys of a step: those that follow one another share blocks. See places_tokens for the choice.
const PLACES: u32 = (TILE + BLOCK_SIZE - 1u) / BLOCK_SIZE;

// Puts the places of the step from key `first` on at `to`.
fn find_places(lane: u32, part: Part, first: u32, to: u32) {
    if (lane < PLACES) {
        places[to + lane] = block_of(part, first + lane * BLOCK_SIZE);
    }
}

// The place of key `key` of the step whose places are from `of_step` on.
fn place_of(of_step: u32, key: u32) -> Place {
    return Place(places[of_step + key / BLOCK_SIZE], key % BLOCK_SIZE);
}
