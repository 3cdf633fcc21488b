// Queries read from workgroup memory, by all lanes at one address.
struct Queries { from_tile: u32 }

fn queries_of(lane: u32) -> Queries {
    return Queries(0u);
}

// Quad `half` of a chunk of head `g`, whichever its span.
fn query(queries: Queries, g: u32, span: u32, chunk: u32, half: u32) -> vec4<f32> {
    return q_tile[(g * CHUNKS + chunk) * 2u + half];
}
