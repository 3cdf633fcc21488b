// Orders pairs of a row and an expert by expert, and cuts them into tiles of at most params.tile pairs of one expert.
//   experts [pairs];  order [pairs] pairs;  tiles [max_tiles] vec4<u32>: expert, first entry of order, end, 0
// Pairs of an expert come in any order: what is computed for a pair does not depend on its neighbours. Tiles past the last
// are empty. An expert behind the last counts as the last. One workgroup. CPU reference: src/cpu/moe_sort.rs
#import EXPERTS = 8

const WG: u32 = 256u;

struct MoeSortParams { pairs: u32, tile: u32, max_tiles: u32 }

@group(0) @binding(0) var<uniform> params: MoeSortParams;
@group(0) @binding(1) var<storage, read> experts: array<u32>;
@group(0) @binding(2) var<storage, read_write> tiles: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> order: array<u32>;

// Lanes that count experts, PER each.
const PER: u32 = (EXPERTS + WG - 1u) / WG;

// Pairs of each expert, then where its next pair goes.
var<workgroup> counts: array<atomic<u32>, EXPERTS>;
// Pairs and tiles of the experts of each lane and of those before it.
var<workgroup> sums: array<vec2<u32>, WG>;

@compute @workgroup_size(WG)
fn moe_sort(@builtin(local_invocation_index) lane: u32) {
    for (var e = lane; e < EXPERTS; e += WG) {
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    for (var pair = lane; pair < params.pairs; pair += WG) {
        atomicAdd(&counts[expert_of(pair)], 1u);
    }
    workgroupBarrier();
    let first = lane * PER;
    let end = min(first + PER, EXPERTS);
    var own = vec2(0u);
    for (var e = first; e < end; e++) {
        let count = atomicLoad(&counts[e]);
        own += vec2(count, (count + params.tile - 1u) / params.tile);
    }
    var sum = own;
    for (var step = 1u; step < WG; step *= 2u) {
        sums[lane] = sum;
        workgroupBarrier();
        if (lane >= step) {
            sum += sums[lane - step];
        }
        workgroupBarrier();
    }
    sums[lane] = sum;
    var entry = sum.x - own.x;
    var tile = sum.y - own.y;
    for (var e = first; e < end; e++) {
        let count = atomicLoad(&counts[e]);
        atomicStore(&counts[e], entry);
        for (var at = 0u; at < count; at += params.tile) {
            tiles[tile] = vec4(e, entry + at, entry + min(at + params.tile, count), 0u);
            tile++;
        }
        entry += count;
    }
    workgroupBarrier();
    for (var empty = sums[WG - 1u].y + lane; empty < params.max_tiles; empty += WG) {
        tiles[empty] = vec4(0u);
    }
    for (var pair = lane; pair < params.pairs; pair += WG) {
        order[atomicAdd(&counts[expert_of(pair)], 1u)] = pair;
    }
}

fn expert_of(pair: u32) -> u32 {
    return min(experts[pair], EXPERTS - 1u);
}
