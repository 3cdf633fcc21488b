// One list of blocks out of many, by vote: what the query blocks and KV heads of a chunk need of a history (XAttention-BSA).
//   lists  [voters] of in_stride u32: count, ascending blocks below `blocks`
//   out    `copies` equal lists of out_stride u32 from list first_list on: the blocks that at least `votes` voters list, the
//          first and the last of the history, and all from `blocks` to `end`, which are the chunk's own
// Grid: (1). One workgroup counts TILE blocks at a time. Bytes moved: 4 * entries of the lists, once for each tile.
// CPU reference: src/cpu/vote_blocks.rs
#import scan = scan_tree

struct VoteBlocksParams {
    voters: u32,
    in_stride: u32,
    votes: u32,
    blocks: u32,
    end: u32,
    copies: u32,
    out_stride: u32,
    first_list: u32,
}

@group(0) @binding(0) var<uniform> params: VoteBlocksParams;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const WG: u32 = 256u;
// Blocks of a lane.
const ITEMS: u32 = 8u;
const TILE: u32 = WG * ITEMS;
// Lanes that read one list.
const READERS: u32 = 32u;

var<workgroup> tally: array<atomic<u32>, TILE>;

@compute @workgroup_size(WG)
fn vote_blocks(lane: Lane) {
    let place = place_of(lane);
    var written = 0u;
    for (var tile = 0u; tile < params.end; tile += TILE) {
        for (var i = place; i < TILE; i += WG) {
            atomicStore(&tally[i], 0u);
        }
        workgroupBarrier();
        for (var voter = place / READERS; voter < params.voters; voter += WG / READERS) {
            let list = voter * params.in_stride;
            // A list is no longer than its place, whatever it counts.
            let count = min(lists[list], params.in_stride - 1u);
            for (var i = place % READERS; i < count; i += READERS) {
                let block = lists[list + 1u + i];
                if (block >= tile && block < tile + TILE) {
                    atomicAdd(&tally[block - tile], 1u);
                }
            }
        }
        workgroupBarrier();
        let first = tile + place * ITEMS;
        var kept = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            kept += select(0u, 1u, is_kept(first + i, atomicLoad(&tally[place * ITEMS + i])));
        }
        let before = scan(kept, lane);
        var rank = written + before.before;
        for (var i = 0u; i < ITEMS; i++) {
            if (is_kept(first + i, atomicLoad(&tally[place * ITEMS + i]))) {
                for (var copy = 0u; copy < params.copies; copy++) {
                    out[(params.first_list + copy) * params.out_stride + 1u + rank] = first + i;
                }
                rank++;
            }
        }
        written += before.total;
        workgroupBarrier();
    }
    for (var copy = place; copy < params.copies; copy += WG) {
        out[(params.first_list + copy) * params.out_stride] = written;
    }
}

fn is_kept(block: u32, votes: u32) -> bool {
    let always = block == 0u || block + 1u >= params.blocks;
    return block < params.end && (always || votes >= params.votes);
}
