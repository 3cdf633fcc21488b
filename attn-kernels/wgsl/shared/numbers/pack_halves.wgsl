// Eight elements as f16.
fn halves(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    return vec4(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}
