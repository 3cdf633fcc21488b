// Stores eight elements in f16, chunk `at` of the cache.
@group(0) @binding(3) var<storage, read_write> latents: array<vec4<u32>>;

fn store_chunk(at: u32, low: vec4<f32>, high: vec4<f32>) {
    latents[at] = vec4(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}
