// Sums over one block of k in the order of sums_loops, with activations that eight lanes load for each other. llvmpipe unrolls
// no long loop, and then moves elements of arrays through memory, lane by lane. A lane's four columns are one vector: naga
// parses that in 5.4 ms, sums one by one in 40, and drivers take a third less time for vectors than for their elements.
const_assert COLS_PER_LANE == 4u;

// Sums of a lane's rows, each with all columns.
struct Sums { v: array<vec4<f32>, ROWS> }

fn sum_at(sums: ptr<function, Sums>, r: u32, c: u32) -> f32 {
    return (*sums).v[r][c];
}

fn add_at(sums: ptr<function, Sums>, r: u32, c: u32, value: f32) {
    (*sums).v[r][c] += value;
}

fn add(sums: ptr<function, Sums>, more: Sums) {
    #unroll r < ROWS
        (*sums).v[r] += more.v[r];
    #end
}

fn block_sums(block: u32, first_col: u32, place: Place, lane: u32) -> Sums {
    var w: array<Block, COLS_PER_LANE>;
    #unroll c < 4
        w[c] = load_block(block, column(place, first_col, c), all_cols(), params.blocks);
    #end
    var x_quads: array<vec4<f32>, ROWS>;
    #unroll r < ROWS
        x_quads[r] = x_block(place, r, block, lane);
    #end
    var out: Sums;
    #unroll i < 8
        let wv = transpose(mat4x4(quad(w[0], i), quad(w[1], i), quad(w[2], i), quad(w[3], i)));
        #unroll r < ROWS
            let xv = subgroupBroadcast(x_quads[r], i);
            let first = fma(wv[1], vec4(xv.y), fma(wv[0], vec4(xv.x), out.v[r]));
            out.v[r] = fma(wv[3], vec4(xv.w), fma(wv[2], vec4(xv.z), first));
        #end
    #end
    return out;
}
