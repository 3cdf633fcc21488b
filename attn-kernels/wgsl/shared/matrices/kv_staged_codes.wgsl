// Staging of codes of eight bits for paged_decode_coop, in orders in which lanes side by side store to different banks: of keys
// first the even ones, then the odd; of values the first halves of all sixteens of dimensions, then the second; and of four
// dimensions the first and third, then the second and fourth, as one mask takes them.

// A load is eight dimensions of two keys, neighbours in a block, or sixteen dimensions of a value.
const PAIRS: u32 = KEYS / 2u;
const SIXTEENS: u32 = CHUNKS / 2u;

// Index of the first load in a block and head.
fn keys_in_block(lane: u32, offset: u32) -> u32 {
    return (lane / PAIRS * BLOCK_SIZE + offset) / 2u + lane % PAIRS;
}

const KEYS_STEP: u32 = WG / PAIRS * BLOCK_SIZE / 2u;

// A lane's values are of keys that follow one another.
fn values_in_block(lane: u32, offset: u32) -> u32 {
    return (offset + value_key(lane, 0u)) * SIXTEENS + lane % SIXTEENS;
}

const VALUES_STEP: u32 = SIXTEENS;

fn value_key(lane: u32, load: u32) -> u32 {
    return lane / SIXTEENS * LOADS + load;
}

fn stage_key(lane: u32, load: u32, words: vec4<u32>) {
    let at = lane % PAIRS * TILE_STRIDE + lane / PAIRS + load * (WG / PAIRS);
    put(at, four_halves(words.x), four_halves(words.y));
    put(at + PAIRS * TILE_STRIDE, four_halves(words.z), four_halves(words.w));
}

fn stage_value(lane: u32, load: u32, words: vec4<u32>, factor: f32) {
    let key = value_key(lane, load);
    let at = (key / 2u + key % 2u * PAIRS) * TILE_STRIDE + lane % SIXTEENS;
    let f = vec4(value_half(factor));
    put(at, four_halves(words.x) * f, four_halves(words.y) * f);
    put(at + SIXTEENS, four_halves(words.z) * f, four_halves(words.w) * f);
}

fn key_of(column: u32) -> u32 {
    return column % PAIRS * 2u + column / PAIRS;
}

fn quad_of(n: u32) -> u32 {
    return n / 2u % SIXTEENS * 4u + n / CHUNKS * 2u + n % 2u;
}

fn staged(x: vec4<f32>) -> vec4<f32> {
    return x.xzyw;
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec4<u32>>;
