// Index keys in fp8 e4m3 as matrices take them: layout of k_index_fp8, 16 codes a load.
@group(0) @binding(2) var<storage, read> k_cache: array<vec4<u32>>;

alias KeySpan = vec4<u32>;

const PAGE: u32 = BLOCK_SIZE * (HEAD_DIM + 4u) / 16u;

// Where the key at `offset` in its page starts.
fn key_at(block: u32, offset: u32) -> u32 {
    return block * PAGE + offset * SPANS;
}

// Channels 16 * span on.
fn key_span(at: u32, span: u32) -> KeySpan {
    return k_cache[at + span];
}

fn key_quads(k: KeySpan) -> array<vec4<f16>, 4> {
    return array(fp8_quad(k.x), fp8_quad(k.y), fp8_quad(k.z), fp8_quad(k.w));
}

fn key_scale(block: u32, offset: u32) -> f32 {
    return bitcast<f32>(k_cache[block * PAGE + BLOCK_SIZE * SPANS + offset / 4u][offset % 4u]);
}

// The bits of e4m3 in those of f16 are 2^-8 of its value.
fn fp8_quad(codes: u32) -> vec4<f16> {
    return vec4<f16>(vec4(fp8_pair(codes & 0xffffu), fp8_pair(codes >> 16u)) * 256.0);
}

fn fp8_pair(codes: u32) -> vec2<f32> {
    let apart = (codes & 0xffu) | ((codes & 0xff00u) << 8u);
    return unpack2x16float(((apart & 0x800080u) << 8u) | ((apart & 0x7f007fu) << 7u));
}
