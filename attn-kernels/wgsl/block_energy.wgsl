// Energies of key blocks for query blocks (FlashPrefill, arXiv 2603.06199):
//   energy[i, j] = log2 of the sum over the rows of query block i of 2^(scale * q . mean key of block j), for all j before i
//   q         rows of q_stride f32, [num_heads, head_dim] from 0; token 0 is row q_first, after `front` tokens of its block
//   means     [num_kv_heads, mean_stride, head_dim] f32 of block_mean
//   energies  [num_heads, query blocks, energy_stride] f32, for the key blocks before a query block; others are not written
// A workgroup goes through the rows of a query block, TILE at a time, against TILE key blocks.
// Grid: (ceil(key blocks / TILE), query blocks of the dispatch, num_heads), the first of them query block first_block.
// Bytes moved: 4 * head_dim a row and TILE key blocks, and the energies. CPU reference: src/cpu/block_energy.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK = 128
#import product_tile

#import block_energy_params
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> means: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> energies: array<f32>;

// Sixteen channels are staged at a time; a last half of them is zeros.
const STEPS: u32 = (HEAD_DIM + 15u) / 16u;

// Log-sum-exps of a lane's rows, one a column.
var<workgroup> ends: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn block_energy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = params.first_block + group.y;
    let own = params.current + block;
    let col0 = group.x * TILE;
    if (col0 >= own) {
        return;
    }
    let x = lane % TILE_QUADS;
    let y = lane / TILE_QUADS;
    // Tokens of the query block that the chunk has.
    let first = select(0u, params.front, block == 0u);
    let end = min(BLOCK, params.front + params.q_len - block * BLOCK);
    var energy = vec4(LOWEST);
    for (var row0 = first / TILE * TILE; row0 < end; row0 += TILE) {
        var sums = Products();
        for (var step = 0u; step < STEPS; step++) {
            stage(lane, step, vec2(block * BLOCK + row0, col0), group.z);
            workgroupBarrier();
            sums = tile_multiply(sums, lane);
            workgroupBarrier();
        }
        var seen: Products;
        var top = vec4(LOWEST);
        for (var i = 0u; i < 4u; i++) {
            let row = row0 + y * 4u + i;
            seen[i] = select(vec4(LOWEST), sums[i] * params.scale, row >= first && row < end);
            top = max(top, seen[i]);
        }
        var sum = vec4(0.0);
        for (var i = 0u; i < 4u; i++) {
            sum += exp2(seen[i] - top);
        }
        ends[lane] = top + log2(sum);
        workgroupBarrier();
        if (y == 0u) {
            var most = energy;
            for (var i = 0u; i < TILE_QUADS; i++) {
                most = max(most, ends[i * TILE_QUADS + x]);
            }
            var all = exp2(energy - most);
            for (var i = 0u; i < TILE_QUADS; i++) {
                all += exp2(ends[i * TILE_QUADS + x] - most);
            }
            energy = most + log2(all);
        }
        workgroupBarrier();
    }
    if (y == 0u) {
        for (var i = 0u; i < 4u; i++) {
            let col = col0 + x * 4u + i;
            if (col < own) {
                energies[(group.z * groups.y + group.y) * params.energy_stride + col] = energy[i];
            }
        }
    }
}

// Stages channels 16 * step on of rows from token `at.x`, counted from the chunk's first block, and of key blocks from `at.y`.
fn stage(lane: u32, step: u32, at: vec2<u32>, head: u32) {
    let mine = staged(lane);
    let chunk = step * 2u + mine.y;
    var low = vec4(0.0);
    var high = vec4(0.0);
    if (stages_columns(lane)) {
        let block = at.y + mine.x;
        if (chunk * 8u < HEAD_DIM && block < params.mean_stride) {
            let kv_head = head / (params.num_heads / params.num_kv_heads);
            let begin = ((kv_head * params.mean_stride + block) * HEAD_DIM + chunk * 8u) / 4u;
            low = means[begin];
            high = means[begin + 1u];
        }
    } else {
        let token = at.x + mine.x;
        if (chunk * 8u < HEAD_DIM && token >= params.front && token - params.front < params.q_len) {
            let row = params.q_first + token - params.front;
            let begin = row * params.q_stride + head * HEAD_DIM + chunk * 8u;
            low = vec4(q[begin], q[begin + 1u], q[begin + 2u], q[begin + 3u]);
            high = vec4(q[begin + 4u], q[begin + 5u], q[begin + 6u], q[begin + 7u]);
        }
    }
    tile_put(lane, low, high);
}
