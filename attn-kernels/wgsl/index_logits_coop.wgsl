enable f16;
enable wgpu_cooperative_matrix;
// index_logits with cooperative matrices: the same bindings, parameters and logits. Queries are rounded to f16, which
// holds every fp8 code; scales of keys are applied to the sums.
// A subgroup of 32 lanes owns the products of 64 heads and 64 keys, a workgroup four subgroups. All go through the
// channels 16 at a time, with keys and queries in workgroup memory, loaded a step ahead of their use. Then the products
// pass through workgroup memory two matrices at a time, where two lanes own a key and add its heads up.
// Grid: (ceil(logit_stride / KEYS), n). Bytes moved: those of index_logits, queries once a tile of 256 keys.
// Needs subgroups of exactly 32. CPU reference: src/cpu/index_logits.rs
#import HEAD_DIM = 128
#import BLOCK_SIZE = 64
#import k = k_coop_index_fp8

#import index_logits_params
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> gates: array<f32>;
@group(0) @binding(6) var<storage, read_write> logits: array<f32>;

const WG: u32 = 128u;
const KEYS: u32 = 256u;
const HEADS: u32 = 64u;
const SPANS: u32 = HEAD_DIM / 16u;
// Rows in workgroup memory, 16 channels, padded so that eight rows fall on different banks.
const TILE_STRIDE: u32 = 6u;

var<workgroup> k_tile: array<vec4<f16>, KEYS * TILE_STRIDE>;
var<workgroup> q_tile: array<vec4<f16>, HEADS * TILE_STRIDE>;
// [subgroup, 32 heads, 16 keys]
var<workgroup> products: array<f32, 4u * 512u>;
var<workgroup> gate: array<f32, HEADS>;

@compute @workgroup_size(WG)
fn index_logits_coop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) within: u32,
) {
    let row = rows[group.y];
    let first = group.x * KEYS;
    let unseen = first >= row.z || first + KEYS <= row.y;
    let base = subgroup * 512u;
    // Of keys within % 16 of each of the subgroup's four matrices, over every other head.
    var sum: array<f32, 4>;
    // Once for 64 heads, or not at all: cooperative matrices may not follow a return.
    for (var head0 = select(0u, params.num_heads, unseen); head0 < params.num_heads; head0 += HEADS) {
        // A lane stages 16 channels of two keys and eight of a head. Beyond the keys and heads that count, copies stand in.
        var key_from: array<u32, 2>;
        #unroll i < 2
            let key = clamp(first + lane + i * WG, row.y, row.z - 1u);
            key_from[i] = key_at(tables[row.w + key / BLOCK_SIZE], key % BLOCK_SIZE);
        #end
        let head = min(head0 + lane / 2u, params.num_heads - 1u);
        let q_from = (row.x * params.num_heads + head) * (HEAD_DIM / 4u) + lane % 2u * 2u;
        if (lane < HEADS) {
            let own = min(head0 + lane, params.num_heads - 1u);
            gate[lane] = select(0.0, gates[row.x * params.num_heads + own], head0 + lane < params.num_heads);
        }

        var s: array<coop_mat16x16<f32, C>, 16>;
        #unroll i < 16
            s[i] = coop_mat16x16<f32, C>();
        #end
        var k_next: array<KeySpan, 2>;
        #unroll i < 2
            k_next[i] = key_span(key_from[i], 0u);
        #end
        var q_low = q[q_from];
        var q_high = q[q_from + 1u];
        for (var span = 0u; span < SPANS; span++) {
            #unroll i < 2
                let quads = key_quads(k_next[i]);
                #unroll c < 4
                    k_tile[(lane + i * WG) * TILE_STRIDE + c] = quads[c];
                #end
            #end
            let to = lane / 2u * TILE_STRIDE + lane % 2u * 2u;
            q_tile[to] = vec4<f16>(q_low);
            q_tile[to + 1u] = vec4<f16>(q_high);
            workgroupBarrier();
            let next = min(span + 1u, SPANS - 1u);
            #unroll i < 2
                k_next[i] = key_span(key_from[i], next);
            #end
            q_low = q[q_from + next * 4u];
            q_high = q[q_from + next * 4u + 1u];
            var heads: array<coop_mat16x16<f16, B>, 4>;
            #unroll i < 4
                heads[i] = coopLoad<coop_mat16x16<f16, B>>(&q_tile[i * 16u * TILE_STRIDE], TILE_STRIDE);
            #end
            #unroll j < 4
                let k_at = (subgroup * 64u + j * 16u) * TILE_STRIDE;
                let keys = coopLoadT<coop_mat16x16<f16, A>>(&k_tile[k_at], TILE_STRIDE);
                #unroll i < 4
                    s[j * 4u + i] = coopMultiplyAdd(keys, heads[i], s[j * 4u + i]);
                #end
            #end
            workgroupBarrier();
        }

        #unroll j < 4
            #unroll pair < 2
                coopStore(s[j * 4u + pair * 2u], &products[base], 16u);
                coopStore(s[j * 4u + pair * 2u + 1u], &products[base + 256u], 16u);
                workgroupBarrier();
                #unroll i < 16
                    let own = i * 2u + within / 16u;
                    let product = products[base + own * 16u + within % 16u];
                    sum[j] = fma(gate[pair * 32u + own], max(product, 0.0), sum[j]);
                #end
                workgroupBarrier();
            #end
        #end
    }

    #unroll j < 4
        products[base + j * 32u + within] = sum[j];
    #end
    workgroupBarrier();
    #unroll i < 2
        let own = i * 32u + within;
        let key = first + subgroup * 64u + own;
        if (key < params.logit_stride) {
            let half = base + own / 16u * 32u + own % 16u;
            var logit = params.neg_inf;
            if (key >= row.y && key < row.z) {
                let scale = key_scale(tables[row.w + key / BLOCK_SIZE], key % BLOCK_SIZE);
                logit = (products[half] + products[half + 16u]) * scale;
            }
            logits[group.y * params.logit_stride + key] = logit;
        }
    #end
}
