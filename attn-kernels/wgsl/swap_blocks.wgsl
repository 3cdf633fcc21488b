// Copies whole blocks from one pool to another: what copy_blocks does where source and target are different buffers.
//   pairs   vec2<u32>: block of the source, block of the target; no target is named twice, and NO_BLOCK as one means no copy.
//           num_pairs from first_pair on count
//   source  blocks of block_quads vec4<u32> from first_source on, K or V of any layout that keeps a block together
//   pool    the same from first_target on, written to
// A workgroup copies one block after the other, four loads of 16 bytes a lane on their way at a time: over a bus few
// workgroups are as fast as many, and leave the device to what runs beside.
// Grid: (workgroups). Bytes moved: twice the blocks. CPU reference: src/cpu/swap_blocks.rs
override WG: u32 = 256u;

const NO_BLOCK: u32 = 0xffffffffu;

struct SwapBlocksParams {
    block_quads: u32,
    num_pairs: u32,
    workgroups: u32,
    first_pair: u32,
    first_source: u32,
    first_target: u32,
}

@group(0) @binding(0) var<uniform> params: SwapBlocksParams;
@group(0) @binding(1) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> pool: array<vec4<u32>>;

@compute @workgroup_size(WG)
fn swap_blocks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let quads = params.block_quads;
    let whole = quads / (4u * WG) * (4u * WG);
    for (var n = group.x; n < params.num_pairs; n += params.workgroups) {
        let pair = pairs[params.first_pair + n];
        if (pair.y == NO_BLOCK) {
            continue;
        }
        let at = (pair - vec2(params.first_source, params.first_target)) * quads;
        var i = lane;
        for (; i < whole; i += 4u * WG) {
            let a = source[at.x + i];
            let b = source[at.x + i + WG];
            let c = source[at.x + i + 2u * WG];
            let d = source[at.x + i + 3u * WG];
            pool[at.y + i] = a;
            pool[at.y + i + WG] = b;
            pool[at.y + i + 2u * WG] = c;
            pool[at.y + i + 3u * WG] = d;
        }
        for (; i < quads; i += WG) {
            pool[at.y + i] = source[at.x + i];
        }
    }
}
