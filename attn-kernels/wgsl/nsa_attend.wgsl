// The compressed branch of NSA (arXiv 2502.11089): mean values of blocks, weighed by the probabilities that nsa_probs gave their
// mean keys.
//   probs    [n, num_heads, prob_stride] f32
//   digests  [num_blocks, num_kv_heads, head_dim], mean values of full pages: f32 beside caches in f32, else f16
//   tables   physical blocks (pages of BLOCK_SIZE tokens)
//   rows     [n] vec4<u32>: row of out, KV length, first entry of its table, -
//   out      [rows, num_heads, head_dim] f32; 0 where a row sees no whole block
// A compressed block is PAGES pages, and one begins where the last ends. One workgroup a row and head: lanes of a side take eight
// channels each of the same pages, and sides are added up in their order. Grid: (num_heads, n).
// Bytes moved: head_dim * (4 or 2) a page and query head of a row, of which caches serve the heads of a group.
// CPU reference: src/cpu/nsa_attend.rs
#import HEAD_DIM = 64
#import BLOCK_SIZE = 16
#import PAGES = 4
#import digests = digests_f16

struct NsaAttendParams { num_heads: u32, num_kv_heads: u32, prob_stride: u32, rows: u32 }

@group(0) @binding(0) var<uniform> params: NsaAttendParams;
@group(0) @binding(1) var<storage, read> probs: array<f32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

const WG: u32 = 128u;
const CHUNKS: u32 = HEAD_DIM / 8u;
const SIDES: u32 = WG / CHUNKS;

var<workgroup> parts: array<array<vec4<f32>, 2>, WG>;

@compute @workgroup_size(WG)
fn nsa_attend(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.y];
    let head = group.x;
    let kv_head = head / (params.num_heads / params.num_kv_heads);
    let prob = (group.y * params.num_heads + head) * params.prob_stride;
    let pages = row.y / (PAGES * BLOCK_SIZE) * PAGES;
    let chunk = lane % CHUNKS;
    let side = lane / CHUNKS;
    var low = vec4(0.0);
    var high = vec4(0.0);
    if (side < SIDES) {
        for (var page = side; page < pages; page += SIDES) {
            let p = probs[prob + page / PAGES] * (1.0 / f32(PAGES));
            let mean = digest_chunk((tables[row.z + page] * params.num_kv_heads + kv_head) * CHUNKS + chunk);
            low = fma(vec4(p), low_of(mean), low);
            high = fma(vec4(p), high_of(mean), high);
        }
    }
    parts[lane][0] = low;
    parts[lane][1] = high;
    workgroupBarrier();
    if (lane < CHUNKS * 2u) {
        var sum = vec4(0.0);
        for (var i = 0u; i < SIDES; i++) {
            sum += parts[i * CHUNKS + lane / 2u][lane % 2u];
        }
        out[(row.x * params.num_heads + head) * CHUNKS * 2u + lane] = sum;
    }
}
