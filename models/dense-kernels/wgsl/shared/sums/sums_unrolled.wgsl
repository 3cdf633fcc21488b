// Sums over one block of k in the order of sums_loops, with activations that eight lanes load for each other. llvmpipe unrolls
// no long loop, and then moves elements of arrays through memory, lane by lane. A lane's four columns are one vector: naga
// parses that in 5.4 ms, sums one by one in 40.
const_assert COLS_PER_LANE == 4u;

fn block_sums(block: u32, first_col: u32, place: Place, lane: u32) -> Sums {
    var w: array<Block, COLS_PER_LANE>;
    #unroll c < 4
        w[c] = load_block(block, column(place, first_col, c), all_cols(), params.blocks);
    #end
    var x_quads: array<vec4<f32>, ROWS>;
    #unroll r < ROWS
        x_quads[r] = x_block(place, r, block, lane);
    #end
    var cols: array<vec4<f32>, ROWS>;
    #unroll i < 8
        let wv = transpose(mat4x4(quad(w[0], i), quad(w[1], i), quad(w[2], i), quad(w[3], i)));
        #unroll r < ROWS
            let xv = subgroupBroadcast(x_quads[r], i);
            cols[r] = fma(wv[0], vec4(xv.x), cols[r]);
            cols[r] = fma(wv[1], vec4(xv.y), cols[r]);
            cols[r] = fma(wv[2], vec4(xv.z), cols[r]);
            cols[r] = fma(wv[3], vec4(xv.w), cols[r]);
        #end
    #end
    var out: Sums;
    #unroll c < 4
        #unroll r < ROWS
            out.v[c * ROWS + r] = cols[r][c];
        #end
    #end
    return out;
}
