// Length of the prefix of the order of blocks that makes every query head of a KV head certain of a share of its mass:
// K >= odds * D, for K the sum of exponentials in the blocks kept and D what the others may hold.
//   rows     [n] vec4<u32>: any, KV length, any, any
//   scores   [n, num_kv_heads, stride] f32 of block_score: larger ones come first, equal ones by index
//   bounds   [n, num_heads, stride] vec2<f32> of block_score
//   lses     [n, num_heads, stride] f32 of block_lse, of the blocks known: those of the second cut
//   cuts     [n, num_kv_heads] two cuts, key and index of a last block: what is kept in any case, and what is known
//   lists    [n, num_kv_heads] of list_stride u32, with LIST: count, ascending blocks
// A block kept counts by its sum of exponentials if that is known, else by its bound. The fewest blocks that suffice so are the
// fewest that can suffice: every one of them is kept in the end, and becomes known for the next round. Where nothing is new they
// do suffice, and no key of another block was read. Rounds are few: the last but one, ALL, makes everything known.
// One workgroup a row and KV head. Grid: (num_kv_heads, n). Bytes moved: 4 a block and search step, 8 * num_heads a block, all
// of which caches serve. CPU reference: src/cpu/mass_cut.rs
#import numbers
#import order_key
#import GROUP = 1
#import scan = scan_tree

struct MassCutParams {
    num_heads: u32,
    num_kv_heads: u32,
    stride: u32,
    select_block: u32, // tokens of a block
    list_stride: u32,
    round: u32,
    odds: f32,
    slack: f32, // how much more than f32 the attention over the lists may lose of a logit
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: MassCutParams;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scores: array<f32>;
@group(0) @binding(3) var<storage, read> bounds: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> lses: array<f32>;
@group(0) @binding(5) var<storage, read_write> cuts: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> lists: array<u32>;

// Bits of the round.
const FIRST: u32 = 1u; // nothing but the last block is known
const ALL: u32 = 2u; // what is not known by now shall be
const LIST: u32 = 4u; // all that is kept is known
const WG: u32 = 256u;
const SIDE: u32 = 16u; // its square is WG
const ITEMS: u32 = 4u;
// Exponentials of more would overflow; what has such a bound leaves no mass certain.
const MAX_EXPONENT: f32 = 80.0;
// The key of +inf, which the last block alone has.
const LAST_KEY: u32 = 0xff800000u;

var<workgroup> tops: array<atomic<u32>, GROUP>;
// Bits of what f32 may lose of a logit in any block: as ordered as the numbers, which are not negative.
var<workgroup> losses: array<atomic<u32>, GROUP>;
var<workgroup> parts: array<vec2<f32>, WG>;
var<workgroup> rows_of_parts: array<vec2<f32>, SIDE>;
var<workgroup> inside: array<atomic<u32>, 2>;
var<workgroup> agreed: vec4<u32>;

// A row and KV head: its blocks, where its scores and bounds are, what is kept in any case and what is known, and of each head
// the largest exponent known and the part of a kept sum that is certain.
struct Site {
    blocks: u32,
    scores: u32,
    bounds: u32,
    base: vec2<u32>,
    known: vec2<u32>,
    tops: array<f32, GROUP>,
    kept: array<f32, GROUP>, // of a kept sum, after what rounding may have added to it
}

// Blocks that are not kept in any case, by their place in the order from low on and before high: those down to low suffice, those
// down to high do not.
struct Span {
    low: u32,
    high: u32,
    count: u32,
    ties: u32, // 1: places are those of the blocks with score `key`, which come by index
    key: u32,
}

// The masses before and behind the span, for each head.
var<private> before: array<f32, GROUP>;
var<private> behind: array<f32, GROUP>;

@compute @workgroup_size(WG)
fn mass_cut(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let place = place_of(lane);
    let row_head = group.y * params.num_kv_heads + group.x;
    let all_blocks = (rows[group.y].y + params.select_block - 1u) / params.select_block;
    var cut = cuts[row_head];
    if ((params.round & FIRST) != 0u) {
        cut = vec4(LAST_KEY, all_blocks - min(all_blocks, 1u), LAST_KEY, all_blocks - min(all_blocks, 1u));
    }
    // A round that kept just what was known settled it.
    let is_open = (params.round & FIRST) != 0u || any(cut.xy != cut.zw);
    let row = agree(vec4(all_blocks, select(0u, 1u, is_open && all_blocks > 0u), 0u, 0u), place);
    if (row.y == 1u) {
        let kept = search(site_of(group, row_head, row.x, cut, place), place);
        let opens = (params.round & ALL) != 0u && any(kept != cut.zw);
        cut = vec4(cut.zw, select(kept, vec2(0u, 0xffffffffu), opens));
    }
    if (place == 0u) {
        cuts[row_head] = cut;
    }
    if ((params.round & LIST) != 0u) {
        put_list(row_head, row.x, cut.zw, lane);
    }
}

fn is_before(key: u32, block: u32, cut: vec2<u32>) -> bool {
    return key > cut.x || (key == cut.x && block <= cut.y);
}

fn agree(what: vec4<u32>, place: u32) -> vec4<u32> {
    if (place == 0u) {
        agreed = what;
    }
    return workgroupUniformLoad(&agreed);
}

// Every lane of the workgroup calls this and all below.
fn site_of(group: vec3<u32>, row_head: u32, blocks: u32, cut: vec4<u32>, place: u32) -> Site {
    var site: Site;
    site.blocks = blocks;
    site.scores = row_head * params.stride;
    site.bounds = (group.y * params.num_heads + group.x * GROUP) * params.stride;
    site.base = cut.xy;
    site.known = cut.zw;
    if (place < GROUP) {
        atomicStore(&tops[place], 0u);
        atomicStore(&losses[place], 0u);
    }
    workgroupBarrier();
    for (var block = place; block < blocks; block += WG) {
        for (var h = 0u; h < GROUP; h++) {
            atomicMax(&losses[h], bitcast<u32>(bounds[site.bounds + h * params.stride + block].y));
        }
        if (is_before(order_key(scores[site.scores + block]), block, cut.zw)) {
            for (var h = 0u; h < GROUP; h++) {
                atomicMax(&tops[h], order_key(lses[site.bounds + h * params.stride + block]));
            }
        }
    }
    workgroupBarrier();
    for (var h = 0u; h < GROUP; h++) {
        let key = atomicLoad(&tops[h]);
        site.tops[h] = bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, key >> 31u == 1u));
        let lost = bitcast<f32>(atomicLoad(&losses[h])) * params.slack;
        site.kept[h] = select(0.0, exp(-lost), lost < MAX_EXPONENT);
    }
    return site;
}

// End of the fewest blocks that suffice by what is known.
fn search(site: Site, place: u32) -> vec2<u32> {
    sum_base(site, place);
    var span = narrow(site, Span(0u, LAST_KEY + 1u, 0u, 0u, 0u), LAST_KEY + 1u, place);
    if (span.low == span.high) {
        return site.base;
    }
    while (span.high - span.low > 1u && span.count > 1u) {
        span = narrow(site, span, span.low + (span.high - span.low) / 2u, place);
    }
    if (span.count == 1u || span.low == 0u) {
        return vec2(span.low, 0xffffffffu);
    }
    // Equal scores: lower indices come first.
    span = Span(0u, 0x80000000u, span.count, 1u, span.low);
    while (span.high - span.low > 1u && span.count > 1u) {
        span = narrow(site, span, span.low + (span.high - span.low) / 2u, place);
    }
    return vec2(span.key, 0x7fffffffu - span.low);
}

// Sums of exponentials of what is kept in any case.
fn sum_base(site: Site, place: u32) {
    for (var h = 0u; h < GROUP; h++) {
        var sum = 0.0;
        for (var block = place; block < site.blocks; block += WG) {
            if (is_before(order_key(scores[site.scores + block]), block, site.base)) {
                sum += exp(lses[site.bounds + h * params.stride + block] - site.tops[h]);
            }
        }
        before[h] = total(sum, 0.0, place).x;
        behind[h] = 0.0;
    }
}

// The side of `middle` on which the answer is; low and high are both `middle` where what is before the span suffices.
fn narrow(site: Site, span: Span, middle: u32, place: u32) -> Span {
    if (place < 2u) {
        atomicStore(&inside[place], 0u);
    }
    var kept: array<f32, GROUP>;
    var dropped: array<f32, GROUP>;
    var counts = vec2(0u);
    for (var block = place; block < site.blocks; block += WG) {
        let key = order_key(scores[site.scores + block]);
        let at = select(key, 0x7fffffffu - block, span.ties == 1u);
        let in_span = (span.ties == 0u || key == span.key) && at >= span.low && at < span.high;
        if (in_span && !is_before(key, block, site.base)) {
            let ahead = at >= middle;
            let is_known = ahead && is_before(key, block, site.known);
            counts += select(vec2(0u, 1u), vec2(1u, 0u), ahead);
            for (var h = 0u; h < GROUP; h++) {
                let of_head = site.bounds + h * params.stride + block;
                var exponent = min(bounds[of_head].x - site.tops[h], MAX_EXPONENT);
                if (is_known) {
                    exponent = lses[of_head] - site.tops[h];
                }
                kept[h] += select(0.0, exp(exponent), ahead);
                dropped[h] += select(exp(exponent), 0.0, ahead);
            }
        }
    }
    workgroupBarrier();
    atomicAdd(&inside[0], counts.x);
    atomicAdd(&inside[1], counts.y);
    var enough = 1u;
    for (var h = 0u; h < GROUP; h++) {
        let sums = total(kept[h], dropped[h], place);
        kept[h] = before[h] + sums.x;
        dropped[h] = behind[h] + sums.y;
        enough = select(0u, enough, kept[h] * site.kept[h] >= params.odds * dropped[h]);
    }
    let found = agree(vec4(enough, atomicLoad(&inside[0]), atomicLoad(&inside[1]), 0u), place);
    if (found.x == 1u) {
        behind = dropped;
        return Span(middle, span.high, found.y, span.ties, span.key);
    }
    before = kept;
    return Span(span.low, middle, found.z, span.ties, span.key);
}

// Sums over all lanes, in a fixed order.
fn total(kept: f32, dropped: f32, place: u32) -> vec2<f32> {
    parts[place] = vec2(kept, dropped);
    workgroupBarrier();
    if (place < SIDE) {
        var sum = vec2(0.0);
        for (var i = 0u; i < SIDE; i++) {
            sum += parts[place * SIDE + i];
        }
        rows_of_parts[place] = sum;
    }
    workgroupBarrier();
    var sum = vec2(0.0);
    for (var i = 0u; i < SIDE; i++) {
        sum += rows_of_parts[i];
    }
    return sum;
}

// The blocks kept, ascending.
fn put_list(row_head: u32, blocks: u32, cut: vec2<u32>, lane: Lane) {
    let list = row_head * params.list_stride;
    var written = 0u;
    for (var tile = 0u; tile < blocks; tile += WG * ITEMS) {
        let first = tile + place_of(lane) * ITEMS;
        var is_kept: array<bool, ITEMS>;
        var mine = 0u;
        for (var i = 0u; i < ITEMS; i++) {
            let block = min(first + i, blocks - 1u);
            let key = order_key(scores[row_head * params.stride + block]);
            is_kept[i] = first + i < blocks && is_before(key, block, cut);
            mine += select(0u, 1u, is_kept[i]);
        }
        let before = scan(mine, lane);
        var rank = written + before.before;
        for (var i = 0u; i < ITEMS; i++) {
            if (is_kept[i]) {
                lists[list + 1u + rank] = first + i;
                rank++;
            }
        }
        written += before.total;
    }
    if (place_of(lane) == 0u) {
        lists[list] = written;
    }
}
