// Weights in images, which software drivers load from for all lanes at once; from a storage buffer lane by lane.
@group(0) @binding(WQ) var wq: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(WS) var ws: texture_storage_2d<rgba32uint, read>;

const IMAGE_ROW: u32 = 4096u;

fn wq_at(at: u32) -> vec4<u32> {
    return textureLoad(wq, vec2(at % IMAGE_ROW, at / IMAGE_ROW));
}

fn ws_at(at: u32) -> u32 {
    let texel = textureLoad(ws, vec2(at / 4u % IMAGE_ROW, at / 4u / IMAGE_ROW));
    let pair = select(texel.xy, texel.zw, (at & 2u) != 0u);
    return select(pair.x, pair.y, (at & 1u) != 0u);
}
