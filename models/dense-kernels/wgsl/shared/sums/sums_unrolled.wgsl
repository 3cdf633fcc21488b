// Sums over one block of k in the order of sums_loops, with activations that eight lanes load for each other. llvmpipe unrolls
// no long loop, and then moves elements of arrays through memory, lane by lane.
fn block_sums(block: u32, first_col: u32, place: Place, lane: u32) -> Sums {
    var out: Sums;
    var w: array<Block, COLS_PER_LANE>;
    #unroll part < PARTS
    #unroll n < WIDE
        w[part * WIDE + n] = load_block(block, column(place, first_col, part * WIDE + n), all_cols(), params.blocks);
    #end
    #end
    var x_quads: array<vec4<f32>, ROWS>;
    #unroll r < ROWS
        x_quads[r] = x_block(place, r, block, lane);
    #end
    #unroll i < 8
        var x_all: array<vec4<f32>, ROWS>;
        #unroll r < ROWS
            x_all[r] = subgroupBroadcast(x_quads[r], i);
        #end
        #unroll part < PARTS
        #unroll n < WIDE
            const c: u32 = part * WIDE + n;
            let wv = quad(w[c], i);
            #unroll r < ROWS
                var s = out.v[c * ROWS + r];
                s = fma(wv.x, x_all[r].x, s);
                s = fma(wv.y, x_all[r].y, s);
                s = fma(wv.z, x_all[r].z, s);
                s = fma(wv.w, x_all[r].w, s);
                out.v[c * ROWS + r] = s;
            #end
        #end
        #end
    #end
    return out;
}
