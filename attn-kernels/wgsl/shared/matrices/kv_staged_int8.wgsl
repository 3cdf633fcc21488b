// Paged KV in int8, layouts of kv_int8, as paged_decode_coop stages it: keys as their codes, values as code times scale. Stands
// in for kv_staged_f16.
#import kv_staged_codes
#import halves

// vec4<u32> of the codes of a block and head, and of codes and scales.
const CODES: u32 = CHUNKS * BLOCK_SIZE / 2u;
const CODES_AND_SCALES: u32 = CODES + BLOCK_SIZE / 4u;
// Unit of staged values: scales down to 2^-16 are normal halves, and values up to 2^14 finite ones.
const VALUE_UNIT: f32 = 0.25;

fn keys_at(lane: u32, block_head: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + keys_in_block(lane, offset);
}

fn values_at(lane: u32, block_head: u32, offset: u32) -> u32 {
    return block_head * CODES_AND_SCALES + values_in_block(lane, offset);
}

// As the mantissa of 1,024 and more, from which the sign's bit makes 1,152 of zero.
fn four_halves(codes: u32) -> vec4<f16> {
    let even = (codes & 0x00ff00ffu) ^ 0x64806480u;
    let odd = ((codes >> 8u) & 0x00ff00ffu) ^ 0x64806480u;
    return halves(even, odd) - vec4<f16>(1152.0);
}

// Columns hold every other key.
fn key_factors(quad: u32, block_head: u32, offset: u32) -> vec4<f32> {
    let at = block_head * CODES_AND_SCALES + CODES + offset / 4u + quad % 2u * 2u;
    let low = bitcast<vec4<f32>>(k_cache[at]);
    let high = bitcast<vec4<f32>>(k_cache[at + 1u]);
    return select(vec4(low.xz, high.xz), vec4(low.yw, high.yw), quad > 1u);
}

fn value_factors(lane: u32, block_head: u32, offset: u32) -> array<f32, LOADS> {
    let key = value_key(lane, 0u);
    let four = bitcast<vec4<f32>>(v_cache[block_head * CODES_AND_SCALES + CODES + (offset + key) / 4u]);
    var factors: array<f32, LOADS>;
    #unroll i < LOADS
        factors[i] = four[key % 4u + i];
    #end
    return factors;
}

fn value_half(factor: f32) -> f16 {
    return f16(factor / VALUE_UNIT);
}

fn k_unit() -> f32 {
    return 1.0;
}

fn v_unit() -> f32 {
    return VALUE_UNIT;
}
