// Copies whole blocks from one pool to another: what copy_blocks does where source and target are different buffers.
//   pairs   [n] vec2<u32>: block of the source, block of the target; no target is named twice
//   source  blocks of block_quads vec4<u32>, K or V of any layout that keeps a block together
//   pool    the same, written to
// One lane copies 16 bytes. Grid: (ceil(block_quads / WG), n). Bytes moved: twice the blocks.
// CPU reference: src/cpu/swap_blocks.rs
override WG: u32 = 64u;

struct SwapBlocksParams { block_quads: u32 }

@group(0) @binding(0) var<uniform> params: SwapBlocksParams;
@group(0) @binding(1) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> pool: array<vec4<u32>>;

@compute @workgroup_size(WG)
fn swap_blocks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group.x * WG + lane;
    if (i < params.block_quads) {
        let pair = pairs[group.y];
        pool[pair.y * params.block_quads + i] = source[pair.x * params.block_quads + i];
    }
}
