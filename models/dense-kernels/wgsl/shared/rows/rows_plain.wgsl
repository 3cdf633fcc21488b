// Rows of x and y one after the other, times one matrix.
struct Place {
    first: u32, // row
    end: u32,
    col: u32, // first column of the matrix among those of its buffer
}

fn place_of(group: vec3<u32>) -> Place {
    return Place(group.y * ROWS, params.rows, 0u);
}

fn all_cols() -> u32 {
    return params.cols * PARTS;
}

// First element of row r of the workgroup in x, in f32; a row past the last is the last.
fn x_row(place: Place, r: u32) -> u32 {
    return min(place.first + r, place.end - 1u) * params.x_stride * 4u;
}

// Place of its results.
fn y_row(place: Place, r: u32) -> u32 {
    return (place.first + r) * params.y_stride;
}
