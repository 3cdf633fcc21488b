// Pairs of a row and an expert, ordered by expert: see moe_sort. The matrices of experts lie side by side.
//   x [pairs / x_div, x_stride] vec4<f32>;  y [pairs, y_stride] f32
//   tiles [n] vec4<u32>: expert, first entry of `order` and the one after the last (equal: no work), 0
// A dispatch serves experts first_matrix to first_matrix + matrices - 1. Grid: (column tiles, n). Stands in for rows_plain.
@group(0) @binding(5) var<storage, read> tiles: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> order: array<u32>;

struct Place { first: u32, end: u32, col: u32 }

fn place_of(group: vec3<u32>) -> Place {
    let tile = tiles[group.y];
    let matrix = tile.x - params.first_matrix;
    return Place(tile.y, select(tile.y, tile.z, matrix < params.matrices), matrix * params.cols * PARTS);
}

fn all_cols() -> u32 {
    return params.cols * PARTS * params.matrices;
}

fn x_row(place: Place, r: u32) -> u32 {
    return order[min(place.first + r, place.end - 1u)] / params.x_div * params.x_stride * 4u;
}

fn y_row(place: Place, r: u32) -> u32 {
    return order[place.first + r] * params.y_stride;
}
