// Writes the latents of a step into the cache of mla_decode: the compressed part, then the rope part.
//   kv      rows of row_stride f32; LATENT elements of a row at latent_start, ROPE at rope_start
//   slots   [rows] i32 physical slots, -1 = skip
//   latents [slots, LATENT + ROPE]
// One lane moves eight elements of one row. CPU reference: src/cpu/latent_write.rs
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
    let element = chunk * 8u;
    let start = select(params.rope_start - LATENT, params.latent_start, element < LATENT);
    let at = row * params.row_stride + start + element;
    store_chunk(u32(slots[row]) * chunks + chunk, four(at), four(at + 4u));
}

fn four(at: u32) -> vec4<f32> {
    return vec4(kv[at], kv[at + 1u], kv[at + 2u], kv[at + 3u]);
}
