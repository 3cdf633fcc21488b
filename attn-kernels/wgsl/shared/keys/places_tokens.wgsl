// Places of the keys of a step, each by itself: for lists of single tokens. Stands in for places_blocks.
const PLACES: u32 = TILE;

// Puts the places of the step from key `first` on at `to`.
fn find_places(lane: u32, part: Part, first: u32, to: u32) {
    for (var i = lane; i < TILE; i += WG) {
        let position = context_position(part.context, min(first + i, part.end - 1u));
        places[to + i] = block_of(part, first + i) * BLOCK_SIZE + position % BLOCK_SIZE;
    }
}

// The place of key `key` of the step whose places are from `of_step` on.
fn place_of(of_step: u32, key: u32) -> Place {
    let slot = places[of_step + key];
    return Place(slot / BLOCK_SIZE, slot % BLOCK_SIZE);
}
