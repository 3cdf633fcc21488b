// Queries in registers of a subgroup, a chunk a lane: software drivers read workgroup memory lane by lane, at one address too.
struct Queries { quads: array<array<vec4<f32>, 2>, GROUP> }

fn queries_of(lane: u32) -> Queries {
    var queries: Queries;
    #unroll g < GROUP
        let at = (g * CHUNKS + min(lane, CHUNKS - 1u)) * 2u;
        queries.quads[g] = array(q_tile[at], q_tile[at + 1u]);
    #end
    return queries;
}

// Quad `half` of a chunk of head `g`.
fn query(queries: Queries, g: u32, chunk: u32, half: u32) -> vec4<f32> {
    return subgroupShuffle(queries.quads[g][half], chunk);
}
