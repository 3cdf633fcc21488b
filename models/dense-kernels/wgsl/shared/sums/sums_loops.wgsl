// Sums of all rows and columns of a lane, column by column.
struct Sums { v: array<f32, SUMS_A_LANE> }

fn sum_at(sums: ptr<function, Sums>, r: u32, c: u32) -> f32 {
    return (*sums).v[c * ROWS + r];
}

fn add_at(sums: ptr<function, Sums>, r: u32, c: u32, value: f32) {
    (*sums).v[c * ROWS + r] += value;
}

fn add(sums: ptr<function, Sums>, more: Sums) {
    for (var i = 0u; i < SUMS_A_LANE; i++) {
        (*sums).v[i] += more.v[i];
    }
}

// Sums over one block of k.
fn block_sums(block: u32, first_col: u32, place: Place, lane: u32) -> Sums {
    var out: Sums;
    var w: array<Block, COLS_PER_LANE>;
    for (var c = 0u; c < COLS_PER_LANE; c++) {
        w[c] = load_block(block, column(place, first_col, c), all_cols(), params.blocks);
    }
    for (var octet = 0u; octet < 4u; octet++) {
        var wv: array<array<vec4<f32>, 2>, COLS_PER_LANE>;
        for (var c = 0u; c < COLS_PER_LANE; c++) {
            wv[c] = array(quad(w[c], octet * 2u), quad(w[c], octet * 2u + 1u));
        }
        for (var r = 0u; r < ROWS; r++) {
            let xv = x_octet(place, r, block * 4u + octet, lane);
            for (var c = 0u; c < COLS_PER_LANE; c++) {
                var s = out.v[c * ROWS + r];
                s = fma(wv[c][0].x, xv[0].x, s);
                s = fma(wv[c][0].y, xv[0].y, s);
                s = fma(wv[c][0].z, xv[0].z, s);
                s = fma(wv[c][0].w, xv[0].w, s);
                s = fma(wv[c][1].x, xv[1].x, s);
                s = fma(wv[c][1].y, xv[1].y, s);
                s = fma(wv[c][1].z, xv[1].z, s);
                s = fma(wv[c][1].w, xv[1].w, s);
                out.v[c * ROWS + r] = s;
            }
        }
    }
    return out;
}
