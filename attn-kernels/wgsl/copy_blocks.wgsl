// Copies whole blocks inside a cache: one source may have many destinations, and no destination is a source.
//   pairs [n] vec2<u32>: source, destination
//   cache blocks of block_quads vec4<u32>, K or V of any layout that keeps a block together
// One lane copies 16 bytes. Grid: (ceil(block_quads / WG), n). Bytes moved: twice the blocks.
// CPU reference: src/cpu/copy_blocks.rs
override WG: u32 = 64u;

struct CopyBlocksParams { block_quads: u32, copies: u32 }

@group(0) @binding(0) var<uniform> params: CopyBlocksParams;
@group(0) @binding(1) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> cache: array<vec4<u32>>;

@compute @workgroup_size(WG)
fn copy_blocks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group.x * WG + lane;
    if (i < params.block_quads) {
        let pair = pairs[group.y];
        cache[pair.y * params.block_quads + i] = cache[pair.x * params.block_quads + i];
    }
}
