// Paged KV in f16, layouts of kv_f16, as paged_decode_coop stages it: keys and values are rows of the tile, in order.
#import halves

// A load is eight dimensions of one key: lanes side by side load keys side by side, of values chunks side by side.
fn keys_at(lane: u32, block_head: u32, offset: u32) -> u32 {
    return (block_head * CHUNKS + lane / KEYS) * BLOCK_SIZE + offset + lane % KEYS;
}

const KEYS_STEP: u32 = WG / KEYS * BLOCK_SIZE;

fn values_at(lane: u32, block_head: u32, offset: u32) -> u32 {
    return (block_head * BLOCK_SIZE + offset) * CHUNKS + lane;
}

const VALUES_STEP: u32 = WG;

fn value_key(lane: u32, load: u32) -> u32 {
    return lane / CHUNKS + load * (WG / CHUNKS);
}

fn stage_key(lane: u32, load: u32, words: vec4<u32>) {
    let at = lane % KEYS * TILE_STRIDE + lane / KEYS + load * (WG / KEYS);
    put(at, halves(words.x, words.y), halves(words.z, words.w));
}

fn stage_value(lane: u32, load: u32, words: vec4<u32>, factor: f32) {
    let at = value_key(lane, load) * TILE_STRIDE + lane % CHUNKS;
    put(at, halves(words.x, words.y), halves(words.z, words.w));
}

// Key of a step in a column of its scores.
fn key_of(column: u32) -> u32 {
    return column;
}

// The four dimensions at columns 4 * n and on of the weighted sums.
fn quad_of(n: u32) -> u32 {
    return n;
}

// Four dimensions in the order in which they are staged, and back.
fn staged(x: vec4<f32>) -> vec4<f32> {
    return x;
}

// Factors of scores of columns 4 * quad and on, and of values of the lane's loads.
fn key_factors(quad: u32, block_head: u32, offset: u32) -> vec4<f32> {
    return vec4(1.0);
}

fn value_factors(lane: u32, block_head: u32, offset: u32) -> array<f32, LOADS> {
    return array<f32, LOADS>();
}

// Value of a staged element.
fn k_unit() -> f32 {
    return 1.0;
}

fn v_unit() -> f32 {
    return 1.0;
}

@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v_cache: array<vec4<u32>>;
