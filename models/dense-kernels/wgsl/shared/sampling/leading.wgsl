// The likeliest tokens of a row, ties to the lower id. Looks only into blocks (see scan_logits.wgsl) whose maximum says that
// there is one. Goes with narrow, a scan module and order_key, and reads `logits` and `maxima`.

// Tokens with keys above `edge`, and of those with that key the ids below `below`.
struct Leading { edge: u32, below: u32 }

// Candidates that are counted: maxima of blocks, keys of tokens, or ids of the tokens with one key, from the lowest id on.
const OF_MAXIMA: u32 = 0u;
const OF_TOKENS: u32 = 1u;
const OF_IDS: u32 = 2u;

fn leads(leading: Leading, key: u32, id: u32) -> bool {
    return key > leading.edge || (key == leading.edge && id < leading.below);
}

// The first token of a block; the others are WG apart.
fn first_of(block: u32) -> u32 {
    return block / WG * WG * TOKENS_PER_LANE + block % WG;
}

// The first `count` of the tokens with keys from `edge` to `most`, the largest of the row; all of them, where they are fewer.
// Every lane of the workgroup calls it.
fn leading(row: u32, edge: u32, most: u32, count: u32, lane: Lane) -> Leading {
    let blocks = params.parts * WG;
    var least = edge;
    var of_what = OF_TOKENS;
    var cut = cut_between(vec2(least, most), count, 0xffffffffu);
    if (count < blocks) {
        // As many blocks have a token from the least of their maxima on: no token below that is among the first.
        of_what = OF_MAXIMA;
        cut = cut_between(vec2(0u, most), count, blocks);
    }
    loop {
        while (!is_found(cut)) {
            if (place_of(lane) == 0u) {
                found = vec3(0u);
            }
            clear_bins(place_of(lane));
            count_keys(row, of_what, least, cut, place_of(lane));
            // Nothing is left where there are fewer than were asked for.
            cut = narrowed(cut, lane);
        }
        if (cut.left == 0u) {
            break;
        }
        if (of_what == OF_IDS) {
            return Leading(least, ~cut.least + 1u);
        }
        least = max(least, cut.least);
        if (of_what == OF_MAXIMA) {
            of_what = OF_TOKENS;
            cut = cut_between(vec2(least, most), count, 0xffffffffu);
        } else if (cut.left == cut.within) {
            return Leading(least, params.vocab);
        } else {
            of_what = OF_IDS;
            cut = cut_between(vec2(~(params.vocab - 1u), 0xffffffffu), cut.left, cut.within);
        }
    }
    return Leading(edge, params.vocab);
}

// Keys from `least` on, or ids of the tokens whose key it is.
fn count_keys(row: u32, of_what: u32, least: u32, cut: Cut, place: u32) {
    for (var block = place; block < params.parts * WG; block += WG) {
        let most = order_key(maxima[row * params.parts * WG + block]);
        if (of_what == OF_MAXIMA) {
            count_key(most, cut);
        } else if (most >= least) {
            var id = first_of(block);
            for (var i = 0u; i < TOKENS_PER_LANE && id < params.vocab; i++) {
                let key = order_key(logits[row * params.vocab + id]);
                if (of_what == OF_TOKENS && key >= least) {
                    count_key(key, cut);
                }
                if (of_what == OF_IDS && key == least) {
                    count_key(~id, cut);
                }
                id += WG;
            }
        }
    }
}
