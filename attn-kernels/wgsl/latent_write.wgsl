// Writes the latents of a step into the cache of mla_decode: the compressed part, then the rope part.
//   kv      rows of row_stride f32; LATENT elements of a row at latent_start, ROPE at rope_start
//   slots   [rows] i32 physical slots, -1 = skip
//   latents [slots], as the element module has them: LATENT + ROPE elements, of codes also a scale of each part
// One lane moves eight elements of one row. Bytes moved: rows * (LATENT + ROPE) * (4 + element).
// CPU reference: src/cpu/latent_write.rs
#import LATENT = 512
#import ROPE = 64
#import element = latent_write_f16
#import flat
override WG: u32 = 64u;

struct LatentWriteParams { rows: u32, row_stride: u32, latent_start: u32, rope_start: u32 }

@group(0) @binding(0) var<uniform> params: LatentWriteParams;
@group(0) @binding(1) var<storage, read> kv: array<f32>;
@group(0) @binding(2) var<storage, read> slots: array<i32>;

@compute @workgroup_size(WG)
fn latent_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let id = flat_index(group, lane);
    let chunks = (LATENT + ROPE) / 8u;
    let chunk = id % chunks;
    let row = id / chunks;
    if (row >= params.rows || slots[row] < 0) {
        return;
    }
    let is_latent = chunk * 8u < LATENT;
    let first = row * params.row_stride + select(params.rope_start, params.latent_start, is_latent);
    let most = largest(first, scaled_with(chunk));
    let at = first + chunk * 8u - select(LATENT, 0u, is_latent);
    store_chunk(u32(slots[row]), chunk, first, most, four(at), four(at + 4u));
}

// The largest magnitude of the elements `within` a part, from one to before another, of the part that begins at `first`.
fn largest(first: u32, within: vec2<u32>) -> f32 {
    var most = 0.0;
    for (var i = within.x; i < within.y; i++) {
        most = max(most, abs(kv[first + i]));
    }
    return most;
}

fn four(at: u32) -> vec4<f32> {
    return vec4(kv[at], kv[at + 1u], kv[at + 2u], kv[at + 3u]);
}
