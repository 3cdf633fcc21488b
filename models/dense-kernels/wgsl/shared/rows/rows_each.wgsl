// Every row holds a vector for each of several matrices, which lie side by side: heads of queries, groups of heads.
//   x [rows, matrices, x_stride] vec4<f32>;  y [rows, matrices, y_stride] f32
// Grid: (column tiles, row tiles, matrices). Stands in for rows_plain.
struct Place { first: u32, end: u32, col: u32, matrix: u32 }

fn place_of(group: vec3<u32>) -> Place {
    return Place(group.y * ROWS, params.rows, group.z * params.cols * PARTS, params.first_matrix + group.z);
}

fn all_cols() -> u32 {
    return params.cols * PARTS * params.matrices;
}

fn x_row(place: Place, r: u32) -> u32 {
    return (min(place.first + r, place.end - 1u) * params.x_div + place.matrix) * params.x_stride * 4u;
}

fn y_row(place: Place, r: u32) -> u32 {
    return ((place.first + r) * params.x_div + place.matrix) * params.y_stride;
}
