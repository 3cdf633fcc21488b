// Copies pages from buffers in memory of the host into slots of the device: those that `residency` found missing, and
// those on the device that were written on the host.
//   fetches         as `residency` leaves it;  a page is what one KV head keeps of a block, page_quads vec4<u32>
//   touched         [n] vec2<u32>: block that was written, block of host_k and host_v that holds it;  places as in `residency`
//   host_k, host_v  [num_blocks, num_kv_heads] pages of the blocks from first_block on: what else is named is left out
//   k, v  [num_slots, num_kv_heads] pages
// The host does not know how many there are: `workgroups` of each head share them.
// Grid: (workgroups, num_kv_heads). Bytes moved over the bus: two pages for each, K and V. CPU reference: src/cpu/fetch_pages.rs
struct FetchPagesParams {
    num_kv_heads: u32,
    num_slots: u32,
    page_quads: u32,
    workgroups: u32,
    fetch: u32, // 0: only what was touched
    touched: u32,
    first_block: u32,
    num_blocks: u32,
}

@group(0) @binding(0) var<uniform> params: FetchPagesParams;
@group(0) @binding(1) var<storage, read> fetches: array<u32>;
@group(0) @binding(2) var<storage, read> host_k: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> host_v: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> places: array<u32>;
@group(0) @binding(5) var<storage, read> touched: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> k: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> v: array<vec4<u32>>;

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn fetch_pages(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let base = group.y * (4u + 2u * params.num_slots);
    let count = select(0u, fetches[base], params.fetch == 1u);
    for (var n = group.x; n < count + params.touched; n += params.workgroups) {
        if (n < count) {
            copy(fetches[base + 4u + 2u * n], fetches[base + 5u + 2u * n], group.y, lane);
            continue;
        }
        let written = touched[n - count];
        let place = places[written.x * params.num_kv_heads + group.y];
        if (place >= 2u) {
            copy(written.y, place - 2u, group.y, lane);
        }
    }
}

fn copy(block: u32, slot: u32, head: u32, lane: u32) {
    let held = block - params.first_block;
    if (held >= params.num_blocks) {
        return;
    }
    let from_page = (held * params.num_kv_heads + head) * params.page_quads;
    let to_page = (slot * params.num_kv_heads + head) * params.page_quads;
    for (var i = lane; i < params.page_quads; i += WG) {
        // Both loads are on their way before either is stored.
        let key = host_k[from_page + i];
        let value = host_v[from_page + i];
        k[to_page + i] = key;
        v[to_page + i] = value;
    }
}
