// Binary hashes for retrieval (UCM's KVComp; HATA, arXiv 2506.02572): bit b of a code is the sign of x . weights[.., b].
//   entries  [n] u32: slots of keys, or rows of q: the source module says; NO_ENTRY where an entry names none. Slots of blocks
//            that the cache does not hold, `num_blocks` from first_block on, are left out
//   weights  [channels, bits] f32, row-major
//   codes    words u32 a code; the dispatch writes bits / 32 of them from first_word on
// A dispatch hashes `channels` channels from first_channel on: MLA hashes its parts apart. Lanes are bits; ENTRIES
// vectors share one read of the weights. Grid: (ceil(n / ENTRIES), num_kv_heads).
// Bytes moved: 4 * channels * bits for ENTRIES vectors, and the vectors. CPU reference: src/cpu/hash_codes.rs
#import HEAD_DIM = 128
#import BLOCK_SIZE = 16
#import source = hash_keys

struct HashCodesParams {
    num_kv_heads: u32,
    entries: u32,
    group: u32,
    q_stride: u32,
    first_channel: u32, // a multiple of 8, as is channels
    channels: u32,
    bits: u32, // a multiple of 32
    first_word: u32,
    words: u32,
    first_block: u32,
    num_blocks: u32,
}

@group(0) @binding(0) var<uniform> params: HashCodesParams;
@group(0) @binding(1) var<storage, read> entries: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> codes: array<u32>;

const WG: u32 = 128u;
const ENTRIES: u32 = 4u;
const WORDS: u32 = WG / 32u;
const NO_ENTRY: u32 = 0xffffffffu;

var<workgroup> vectors: array<f32, ENTRIES * HEAD_DIM>;
var<workgroup> signs: array<atomic<u32>, ENTRIES * WORDS>;

@compute @workgroup_size(WG)
fn hash_codes(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * ENTRIES;
    let chunks = params.channels / 8u;
    for (var i = lane; i < ENTRIES * chunks; i += WG) {
        let entry = first + i / chunks;
        if (entry < params.entries && is_held(entries[entry])) {
            let x = vector_chunk(entries[entry], group.y, params.first_channel / 8u + i % chunks);
            for (var d = 0u; d < 4u; d++) {
                vectors[i / chunks * HEAD_DIM + i % chunks * 8u + d] = x.low[d];
                vectors[i / chunks * HEAD_DIM + i % chunks * 8u + 4u + d] = x.high[d];
            }
        }
    }
    for (var bit0 = 0u; bit0 < params.bits; bit0 += WG) {
        if (lane < ENTRIES * WORDS) {
            atomicStore(&signs[lane], 0u);
        }
        workgroupBarrier();
        let bit = bit0 + lane;
        if (bit < params.bits) {
            var dots = vec4(0.0);
            for (var d = 0u; d < params.channels; d++) {
                let w = weights[d * params.bits + bit];
                let x = vec4(
                    vectors[d], vectors[HEAD_DIM + d], vectors[2u * HEAD_DIM + d], vectors[3u * HEAD_DIM + d],
                );
                dots = fma(vec4(w), x, dots);
            }
            for (var e = 0u; e < ENTRIES; e++) {
                if (dots[e] > 0.0) {
                    atomicOr(&signs[e * WORDS + lane / 32u], 1u << (lane % 32u));
                }
            }
        }
        workgroupBarrier();
        let entry = first + lane / WORDS;
        let word = bit0 / 32u + lane % WORDS;
        let writes = lane < ENTRIES * WORDS && entry < params.entries && word < params.bits / 32u;
        if (writes && is_held(entries[entry])) {
            let code = code_of(entry, entries[entry], group.y);
            codes[code * params.words + params.first_word + word] = atomicLoad(&signs[lane]);
        }
        workgroupBarrier();
    }
}
