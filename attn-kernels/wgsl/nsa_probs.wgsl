// Attention to compressed keys (NSA, arXiv 2502.11089): softmax of scale * q . mean key over compressed blocks of KERNEL
// strides, one beginning every stride; a row sees those that end within it. The mean key of a compressed block is the mean
// of its pages' digests.
//   q        rows of q_stride f32, [num_heads, head_dim] from 0
//   digests  [num_blocks, num_kv_heads, head_dim], means of full pages, from block_digest: f32 beside caches in f32, else f16
//   tables   physical blocks (pages of BLOCK_SIZE tokens);  rows [n] vec4<u32>: row of q, KV length, first entry of its table, 0
//   probs    [n, num_heads, prob_stride] f32; 0 beyond the compressed blocks of a row
// A stride is PAGES pages. One workgroup a row and head: LANES lanes make the mean logit of a stride, then windows of KERNEL
// of them become probabilities. Grid: (num_heads, n). Bytes moved: head_dim * (4 or 2) a page and query head of a row, of which
// caches serve the heads of a group, and 20 a stride. CPU reference: src/cpu/nsa_probs.rs
#import numbers
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 1
#import KERNEL = 2
#import digests = digests_f16

struct NsaProbsParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    prob_stride: u32,
    scale: f32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: NsaProbsParams;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> probs: array<f32>;

const LANES: u32 = 8u;
const WG: u32 = 256u;
const AT_ONCE: u32 = WG / LANES;
const CHUNKS: u32 = HEAD_DIM / 8u;

var<workgroup> q_tile: array<vec4<f32>, CHUNKS * 2u>;
var<workgroup> parts: array<f32, WG>;

@compute @workgroup_size(WG)
fn nsa_probs(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.y];
    let head = group.x;
    let out = (group.y * params.num_heads + head) * params.prob_stride;
    let strides = row.y / (PAGES * BLOCK_SIZE);
    let at = row.x * params.q_stride + head * HEAD_DIM;
    for (var i = lane; i < CHUNKS * 2u; i += WG) {
        let quad = vec4(q[at + i * 4u], q[at + i * 4u + 1u], q[at + i * 4u + 2u], q[at + i * 4u + 3u]);
        q_tile[i] = quad * params.scale / f32(KERNEL * PAGES);
    }
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    for (var first = 0u; first < strides; first += AT_ONCE) {
        workgroupBarrier();
        let stride = first + lane / LANES;
        parts[lane] = 0.0;
        if (stride < strides) {
            parts[lane] = part_of(row.z + stride * PAGES, kv_head, lane % LANES);
        }
        workgroupBarrier();
        if (stride < strides && lane % LANES == 0u) {
            var sum = parts[lane];
            for (var i = 1u; i < LANES; i++) {
                sum += parts[lane + i];
            }
            probs[out + stride] = sum;
        }
    }
    let seen = select(0u, strides - (KERNEL - 1u), strides >= KERNEL);
    softmax(out, seen, lane);
    for (var i = seen + lane; i < params.prob_stride; i += WG) {
        probs[out + i] = 0.0;
    }
}

// One lane's share of a stride's dot products: every LANES-th chunk of channels.
fn part_of(entry: u32, kv_head: u32, lane: u32) -> f32 {
    var sum = vec4(0.0);
    for (var page = 0u; page < PAGES; page++) {
        let page_at = (tables[entry + page] * params.num_kv_heads + kv_head) * CHUNKS;
        for (var chunk = lane; chunk < CHUNKS; chunk += LANES) {
            let mean = digest_chunk(page_at + chunk);
            sum = fma(q_tile[chunk * 2u], low_of(mean), sum);
            sum = fma(q_tile[chunk * 2u + 1u], high_of(mean), sum);
        }
    }
    return dot(sum, vec4(1.0));
}

// Turns dot products of strides into probabilities of the `seen` compressed blocks, in place: a chunk of windows is summed
// before the first of its dot products is overwritten, and no later chunk reads those.
fn softmax(out: u32, seen: u32, lane: u32) {
    var top = LOWEST;
    for (var first = 0u; first < seen; first += WG) {
        storageBarrier();
        let window = first + lane;
        var logit = LOWEST;
        if (window < seen) {
            logit = 0.0;
            for (var i = 0u; i < KERNEL; i++) {
                logit += probs[out + window + i];
            }
        }
        top = max(top, logit);
        storageBarrier();
        if (window < seen) {
            probs[out + window] = logit;
        }
    }
    top = joined_max(top, lane);
    var sum = 0.0;
    for (var window = lane; window < seen; window += WG) {
        let term = exp(probs[out + window] - top);
        probs[out + window] = term;
        sum += term;
    }
    sum = joined_sum(sum, lane);
    for (var window = lane; window < seen; window += WG) {
        probs[out + window] /= sum;
    }
}

fn joined_max(mine: f32, lane: u32) -> f32 {
    workgroupBarrier();
    parts[lane] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            parts[lane] = max(parts[lane], parts[lane + half]);
        }
    }
    workgroupBarrier();
    return parts[0];
}

fn joined_sum(mine: f32, lane: u32) -> f32 {
    workgroupBarrier();
    parts[lane] = mine;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            parts[lane] += parts[lane + half];
        }
    }
    workgroupBarrier();
    return parts[0];
}
