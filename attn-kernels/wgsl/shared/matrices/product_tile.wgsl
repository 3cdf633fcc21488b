// Products of TILE rows and TILE columns in f32, sixteen channels at a time from workgroup memory; a lane owns four rows
// of four columns. CPU references add up in another order.
const TILE: u32 = 64u;
const TILE_QUADS: u32 = TILE / 4u;
const WG: u32 = TILE_QUADS * TILE_QUADS;

// [channel, row or column]: a lane reads four neighbours at once.
var<workgroup> tile_rows: array<vec4<f32>, 16u * TILE_QUADS>;
var<workgroup> tile_cols: array<vec4<f32>, 16u * TILE_QUADS>;

// Four rows of a lane, four columns each.
alias Products = array<vec4<f32>, 4>;

// A lane stages eight channels of one row or column: the first half of the lanes columns, the second rows.
fn stages_columns(lane: u32) -> bool {
    return lane < 2u * TILE;
}

// The row or column, and the eight of the sixteen channels.
fn staged(lane: u32) -> vec2<u32> {
    return vec2(lane % TILE, lane / TILE % 2u);
}

fn tile_put(lane: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = staged(lane);
    for (var i = 0u; i < 4u; i++) {
        let to = (at.y * 8u + i) * TILE_QUADS + at.x / 4u;
        if (stages_columns(lane)) {
            tile_cols[to][at.x % 4u] = low[i];
            tile_cols[to + 4u * TILE_QUADS][at.x % 4u] = high[i];
        } else {
            tile_rows[to][at.x % 4u] = low[i];
            tile_rows[to + 4u * TILE_QUADS][at.x % 4u] = high[i];
        }
    }
}

// Adds the products of what is staged.
fn tile_multiply(products: Products, lane: u32) -> Products {
    var sums = products;
    for (var i = 0u; i < 16u; i++) {
        let a = tile_rows[i * TILE_QUADS + lane / TILE_QUADS];
        let b = tile_cols[i * TILE_QUADS + lane % TILE_QUADS];
        sums[0] = fma(vec4(a.x), b, sums[0]);
        sums[1] = fma(vec4(a.y), b, sums[1]);
        sums[2] = fma(vec4(a.z), b, sums[2]);
        sums[3] = fma(vec4(a.w), b, sums[3]);
    }
    return sums;
}
