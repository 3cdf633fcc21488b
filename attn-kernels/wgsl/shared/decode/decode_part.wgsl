// Shared by all forms of paged_decode: parameters and bindings, and the keys and heads of a workgroup.
struct PagedDecodeParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    max_partitions: u32,
    partition_size: u32, // in keys
    scale: f32,
    reduced: u32, // 1: paged_reduce follows
    list_stride: u32,
    first_row: u32,
    first_key: u32,
    num_keys: u32,
    softcap: f32,
    k_scale: f32, // of fp8
    v_scale: f32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: PagedDecodeParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> partial: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> stats: array<vec2<f32>>;

const CHUNKS: u32 = HEAD_DIM / 8u;
const QUADS: u32 = HEAD_DIM / 4u;

// The keys that a workgroup attends: in the order of attention those from begin to before end; none if these are equal.
struct Part {
    context: Context,
    table: u32,
    kv_head: u32,
    head0: u32, // first of GROUP
    position: u32,
    begin: u32,
    end: u32,
}

// Place of a workgroup's results.
struct Destination {
    stored: u32, // heads of the group before this one are another workgroup's
    stat: u32, // entry of the first head's partition in stats
    out: u32, // the first head's row of the output
}

// The first head of a workgroup's group, and how many of its heads the workgroup before it has: where GROUP does not divide the
// query heads of a KV head, the last group begins early.
fn heads_of(group: vec3<u32>) -> vec2<u32> {
    let of_kv_head = params.num_heads / params.num_kv_heads;
    let start = group.x % groups() * GROUP;
    let first = min(start, of_kv_head - GROUP);
    return vec2(group.y * of_kv_head + first, start - first);
}

// Groups of the query heads of a KV head.
fn groups() -> u32 {
    return (params.num_heads / params.num_kv_heads + GROUP - 1u) / GROUP;
}

fn part_of(group: vec3<u32>) -> Part {
    let row = rows[params.first_row + group.z];
    let context = context_of((params.first_row + group.z) * params.num_kv_heads + group.y);
    let begin = context_begin(context, row.w);
    let end = context_end(context, row.y);
    let size = params.partition_size;
    let first = (max(begin, params.first_key) / size + group.x / groups()) * size;
    let mine = max(first, begin) < end && first - params.first_key < params.num_keys;
    return Part(
        context,
        row.z,
        group.y,
        heads_of(group).x,
        row.y - 1u,
        max(first, begin),
        select(max(first, begin), min(end, first + size), mine),
    );
}

// The place of a workgroup that attends `part`, computed when it is needed: kept through the loop over keys it takes registers,
// which slowed the kernel from 535 to 700 us on an H200 (16 rows of 32,768 keys, 32/8 heads of 128).
fn destination_of(group: vec3<u32>, part: Part) -> Destination {
    let row = rows[params.first_row + group.z];
    let heads = heads_of(group);
    let size = params.partition_size;
    let index = part.begin / size - context_begin(part.context, row.w) / size;
    return Destination(
        heads.y,
        (group.z * params.num_heads + heads.x) * params.max_partitions + index,
        row.x * params.num_heads + heads.x,
    );
}

// A row without keys is zero; where the reduce pass follows, that writes it.
fn store_nothing(dest: Destination, lane: u32) {
    if (params.reduced == 0u) {
        for (var i = dest.stored * QUADS + lane; i < GROUP * QUADS; i += WG) {
            partial[dest.out * QUADS + i] = vec4(0.0);
        }
    }
}

// First quad of the weighted values of head `g` of the group.
fn row_of(dest: Destination, g: u32) -> u32 {
    return select(dest.stat + g * params.max_partitions, dest.out + g, params.reduced == 0u) * QUADS;
}

// A quad of dimensions of head `g` of the group: the weighted values of a part of the softmax whose largest logit is `top`.
fn store(dest: Destination, g: u32, index: u32, weighted: vec4<f32>, top: f32, sum: f32) {
    if (g < dest.stored) {
        return;
    }
    partial[row_of(dest, g) + index] = select(weighted, weighted / sum, params.reduced == 0u);
    if (index == 0u) {
        stats[dest.stat + g * params.max_partitions] = vec2(top, sum);
    }
}
