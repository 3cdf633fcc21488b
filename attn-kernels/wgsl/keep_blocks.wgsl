// Lists of the blocks whose energy has a share of the largest of their query block and head (FlashPrefill, arXiv 2603.06199).
//   energies  [num_heads, query_blocks, energy_stride] f32, log2, of block_energy
//   out       lists of out_stride u32: count, ascending blocks, from list first_list on, [query_blocks, num_kv_heads]
// A KV head keeps what any of its query heads keeps; the first blocks, the last ones and the query block's own in any case. An
// energy that is no number keeps nothing. Grid: (query_blocks, num_kv_heads).
// Bytes moved: 8 a block and query head, the second time from caches, and the lists. CPU reference: src/cpu/keep_blocks.rs
#import numbers
#import GROUP = 1
#import scan = scan_tree

struct KeepBlocksParams {
    num_kv_heads: u32,
    query_blocks: u32,
    energy_stride: u32,
    current: u32, // key block of the first query block
    out_stride: u32,
    first_list: u32,
    sink_blocks: u32,
    recent_blocks: u32,
    log2_alpha: f32,
}

@group(0) @binding(0) var<uniform> params: KeepBlocksParams;
@group(0) @binding(1) var<storage, read> energies: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;
const ITEMS: u32 = 4u;

var<workgroup> tops: array<f32, WG>;

@compute @workgroup_size(WG)
fn keep_blocks(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let own = params.current + group.x;
    let place = place_of(lane);
    var needed: array<f32, GROUP>;
    for (var h = 0u; h < GROUP; h++) {
        let begin = first_of(group, h);
        var top = LOWEST;
        for (var i = place; i < own; i += WG) {
            top = max(top, energies[begin + i]);
        }
        tops[place] = top;
        for (var half = WG / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if (place < half) {
                tops[place] = max(tops[place], tops[place + half]);
            }
        }
        workgroupBarrier();
        needed[h] = tops[0] + params.log2_alpha;
        workgroupBarrier();
    }
    let list = (params.first_list + group.x * params.num_kv_heads + group.y) * params.out_stride;
    var written = 0u;
    for (var tile = 0u; tile <= own; tile += WG * ITEMS) {
        let first = tile + place * ITEMS;
        var kept: array<bool, ITEMS>;
        var mine = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            let block = first + i;
            if (block <= own) {
                kept[i] = is_forced(block, own);
            }
            if (block < own) {
                for (var h = 0u; h < GROUP; h++) {
                    kept[i] |= energies[first_of(group, h) + block] >= needed[h];
                }
            }
            mine += select(0u, 1u, kept[i]);
        }
        let before = scan(mine, lane);
        var rank = written + before.before;
        for (var i = 0u; i < ITEMS; i++) {
            if (kept[i]) {
                out[list + 1u + rank] = first + i;
                rank++;
            }
        }
        written += before.total;
    }
    if (place == 0u) {
        out[list] = written;
    }
}

fn first_of(group: vec3<u32>, h: u32) -> u32 {
    return ((group.y * GROUP + h) * params.query_blocks + group.x) * params.energy_stride;
}

// Whether query block `own` keeps a block up to it whatever its energy.
fn is_forced(block: u32, own: u32) -> bool {
    return block < params.sink_blocks || block == own || own - block < params.recent_blocks;
}
