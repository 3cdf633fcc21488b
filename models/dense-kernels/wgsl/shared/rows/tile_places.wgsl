// Rows and columns of a lane in a tile that ROW_LANES by COL_LANES lanes share.
// Row `i` of a lane in the tile: fours side by side, so that one load brings four.
fn a_place(i: u32, row_lane: u32) -> u32 {
    return i / 4u * ROW_LANES * 4u + row_lane * 4u + i % 4u;
}

// Columns of a lane in a part that lie side by side: four, or all.
const RUN: u32 = min(4u, WIDE / PARTS);

// Column `j` of a lane in the tile, parts one after the other.
fn b_place(j: u32, col_lane: u32) -> u32 {
    return j / RUN * COL_LANES * RUN + col_lane * RUN + j % RUN;
}
