// Weights in storage buffers, for bindings wq and ws of the kernel.
@group(0) @binding(WQ) var<storage, read> wq: array<vec4<u32>>;
@group(0) @binding(WS) var<storage, read> ws: array<u32>;

fn wq_at(at: u32) -> vec4<u32> {
    return wq[at];
}

fn ws_at(at: u32) -> u32 {
    return ws[at];
}
