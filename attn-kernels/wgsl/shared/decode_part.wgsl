// What paged_decode and paged_decode_subgroup share: parameters and bindings, and which keys and heads are a workgroup's.
struct PagedDecodeParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    max_partitions: u32,
    partition_size: u32, // in keys
    scale: f32,
    reduced: u32, // 1: paged_reduce follows
    list_stride: u32,
    first_list: u32,
    first_key: u32,
    num_keys: u32,
    softcap: f32,
    k_scale: f32, // of fp8
    v_scale: f32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<uniform> params: PagedDecodeParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> tables: array<u32>;
@group(0) @binding(5) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> partial: array<f32>;
@group(0) @binding(7) var<storage, read_write> stats: array<vec2<f32>>;

const CHUNKS: u32 = HEAD_DIM / 8u;
const_assert CHUNKS % CHUNKS_AHEAD == 0u;

// Heads side by side.
var<workgroup> q_tile: array<vec4<f32>, HEAD_DIM * GROUP / 4u>;
// What keys of codes bring by being read as 128 more.
var<workgroup> q_zero: array<f32, 4>;

// Whose keys a workgroup attends: in the order of attention those from begin to before end; none where they are equal.
struct Part {
    context: Context,
    table: u32,
    kv_head: u32,
    head0: u32, // first of GROUP
    stored: u32, // heads of the group that another workgroup stores
    position: u32,
    begin: u32,
    end: u32,
    q: u32, // first element of its queries
    stat: u32, // entry of the first head's partition in stats
    out: u32, // the first head's row of the output
}

// Where a key is: its block and head, and its offset in it.
struct Place { block: u32, offset: u32 }

fn part_of(group: vec3<u32>) -> Part {
    let row = rows[group.z];
    // Where GROUP does not divide the query heads of a KV head, the last group begins early and stores its new heads only.
    let of_kv_head = params.num_heads / params.num_kv_heads;
    let groups = (of_kv_head + GROUP - 1u) / GROUP;
    let kv_head = group.y;
    let start = group.x % groups * GROUP;
    let head0 = kv_head * of_kv_head + min(start, of_kv_head - GROUP);
    let context = context_of((params.first_list + group.z) * params.num_kv_heads + kv_head);
    let begin = context_begin(context, row.w);
    let end = context_end(context, row.y);
    let size = params.partition_size;
    let first = (max(begin, params.first_key) / size + group.x / groups) * size;
    let mine = max(first, begin) < end && first - params.first_key < params.num_keys;
    let index = first / size - begin / size;
    return Part(
        context,
        row.z,
        kv_head,
        head0,
        start - min(start, of_kv_head - GROUP),
        row.y - 1u,
        max(first, begin),
        // Before the sum, which would overflow for partitions without an end.
        select(max(first, begin), first + min(size, end - min(end, first)), mine),
        row.x * params.q_stride + head0 * HEAD_DIM,
        (group.z * params.num_heads + head0) * params.max_partitions + index,
        row.x * params.num_heads + head0,
    );
}

// A row without keys is zero; where the reduce pass follows, that writes it.
fn store_nothing(part: Part, lane: u32) {
    if (params.reduced == 0u) {
        for (var i = part.stored * HEAD_DIM + lane; i < HEAD_DIM * GROUP; i += WG) {
            partial[part.out * HEAD_DIM + i] = 0.0;
        }
    }
}

// Four dimensions of head `g` of the group, from 4 * index on: the weighted values of a part of the softmax whose largest
// logit is `top`.
fn store(part: Part, g: u32, index: u32, weighted: vec4<f32>, top: f32, sum: f32) {
    if (g < part.stored) {
        return;
    }
    var at = (part.stat + g * params.max_partitions) * HEAD_DIM;
    var quad = weighted;
    if (params.reduced == 0u) {
        at = (part.out + g) * HEAD_DIM;
        quad /= sum;
    }
    #unroll i < 4
        partial[at + index * 4u + i] = quad[i];
    #end
    if (index == 0u) {
        stats[part.stat + g * params.max_partitions] = vec2(top, sum);
    }
}

// Every lane of the workgroup calls it.
fn load_q(part: Part, lane: u32) {
    for (var i = lane; i < HEAD_DIM * GROUP / 4u; i += WG) {
        let at = part.q + i * 4u;
        q_tile[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
    }
    workgroupBarrier();
    if (KV_ZERO != 0.0) {
        if (lane < GROUP) {
            q_zero[lane] = zero_logit(lane);
        }
        workgroupBarrier();
    }
}

// Logit of a key that is all KV_ZERO, before its factor.
fn zero_logit(head: u32) -> f32 {
    var zero = 0.0;
    for (var i = head * CHUNKS * 2u; i < (head + 1u) * CHUNKS * 2u; i++) {
        zero += dot(q_tile[i], vec4(KV_ZERO));
    }
    return zero;
}
