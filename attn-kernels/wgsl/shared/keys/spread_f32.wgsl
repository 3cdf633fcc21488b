// A chunk of eight elements in f32, of which each of eight lanes of a subgroup (of at least eight) has one.
const SPAN: u32 = 1u;

fn spread(v: f32) -> array<vec4<f32>, 2u * SPAN> {
    return array(
        vec4(subgroupBroadcast(v, 0u), subgroupBroadcast(v, 1u), subgroupBroadcast(v, 2u), subgroupBroadcast(v, 3u)),
        vec4(subgroupBroadcast(v, 4u), subgroupBroadcast(v, 5u), subgroupBroadcast(v, 6u), subgroupBroadcast(v, 7u)),
    );
}
