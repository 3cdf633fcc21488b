//! Reference of `segment_sum`.

use crate::cast::f32_of;
use crate::kernel::segment_sum::SegmentSumParams;

/// Returns the sum of the rows of `x` in each segment, `[segments, 4 * quads]`. A segment is the index of its first
/// row and its number of rows.
#[must_use]
pub fn segment_sum(params: &SegmentSumParams, x: &[f32], segments: &[[u32; 2]]) -> Vec<f32> {
    let width = 4 * params.quads as usize;
    let sum = |&[first, len]: &[u32; 2]| {
        let rows = &x[first as usize * width..][..len as usize * width];
        let column = move |col| rows.iter().skip(col).step_by(width).map(|x| f64::from(*x)).sum();
        (0..width).map(column).map(f32_of)
    };
    segments.iter().flat_map(sum).collect()
}
