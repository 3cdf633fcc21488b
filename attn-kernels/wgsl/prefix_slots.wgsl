// Slots of one chunk of the cached prefixes of a batch, sequence after sequence: what a gather of the chunk reads
// (chunked prefix cache of SGLang).
//   spans   [n] vec4<u32>: first position, tokens, first slot in out, first entry of the block table
//   tables  physical blocks
//   slots   i32, block * block_size + offset
// Grid: (ceil(most tokens / WG), n). Bytes moved: 8 a token. CPU reference: src/cpu/prefix_slots.rs
struct PrefixSlotsParams { block_size: u32, spans: u32, max_tokens: u32 }

@group(0) @binding(0) var<uniform> params: PrefixSlotsParams;
@group(0) @binding(1) var<storage, read> spans: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> tables: array<u32>;
@group(0) @binding(3) var<storage, read_write> slots: array<u32>;

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn prefix_slots(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let span = spans[group.y];
    let i = group.x * WG + lane;
    if (i < span.y) {
        let position = span.x + i;
        let block = tables[span.w + position / params.block_size];
        slots[span.z + i] = block * params.block_size + position % params.block_size;
    }
}
