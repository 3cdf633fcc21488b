// Adds up what the splits of a matmul along k left, in order, and finishes as the matmul would.
//   partials [splits, rows, cols] f32;  y [rows, y_stride] f32, columns from y_offset on
// Bytes moved: 4 a partial sum, 4 a result (8 where it adds).
// Grid: (columns / 64, rows). CPU reference: src/cpu/split_sum.rs
#import epilogue = epilogue_store

struct SplitSumParams {
    rows: u32,
    cols: u32,
    splits: u32,
    y_stride: u32,
    y_offset: u32,
}

@group(0) @binding(0) var<uniform> params: SplitSumParams;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn split_sum(@builtin(global_invocation_id) id: vec3<u32>) {
    let col = id.x;
    let row = id.y;
    if (col >= params.cols) {
        return;
    }
    var sum = 0.0;
    for (var split = 0u; split < params.splits; split++) {
        sum += partials[(split * params.rows + row) * params.cols + col];
    }
    finish(row * params.y_stride + params.y_offset + col, sum, 0.0);
}
