// Queries in registers of a subgroup, a chunk a lane and span: software drivers read workgroup memory lane by lane, even at one
// address.
struct Queries { quads: array<array<vec4<f32>, 2>, OWNED> }

fn queries_of(lane: u32) -> Queries {
    var queries: Queries;
    #unroll g < GROUP
        #unroll s < SPANS
            let at = (g * CHUNKS + min(chunk_of(lane, s), CHUNKS - 1u)) * 2u;
            queries.quads[g * SPANS + s] = array(q_tile[at], q_tile[at + 1u]);
        #end
    #end
    return queries;
}

// Quad `half` of a chunk of head `g`, which is in a span.
fn query(queries: Queries, g: u32, span: u32, chunk: u32, half: u32) -> vec4<f32> {
    return subgroupShuffle(queries.quads[g * SPANS + span][half], chunk - span * SUBGROUP);
}
