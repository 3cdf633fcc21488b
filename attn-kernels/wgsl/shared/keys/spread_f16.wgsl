// Two chunks of eight elements in f16, of which each of eight lanes of a subgroup (of at least eight) has a word.
const SPAN: u32 = 2u;

fn spread(word: u32) -> array<vec4<f32>, 2u * SPAN> {
    let v = unpack2x16float(word);
    return array(
        vec4(subgroupBroadcast(v, 0u), subgroupBroadcast(v, 1u)),
        vec4(subgroupBroadcast(v, 2u), subgroupBroadcast(v, 3u)),
        vec4(subgroupBroadcast(v, 4u), subgroupBroadcast(v, 5u)),
        vec4(subgroupBroadcast(v, 6u), subgroupBroadcast(v, 7u)),
    );
}
