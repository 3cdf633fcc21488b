//! Reference of `top_k_transform`.

use super::top_k::transformed;
use crate::kernel::top_k::Transform;
use crate::kernel::top_k_transform::TopKTransformParams;

/// Transforms the positions `out` `[rows, out_stride]` in place; -1 stays. Library only: the engine's selection transforms
/// positions as it writes them.
pub fn top_k_transform(
    params: &TopKTransformParams,
    transform: Transform,
    rows: &[[u32; 4]],
    table: &[u32],
    out: &mut [u32],
) {
    for (row, positions) in rows.iter().zip(out.chunks_mut(params.out_stride as usize)) {
        for position in positions.iter_mut().filter(|p| **p != u32::MAX) {
            *position = transformed(transform, params.page_size, table, row[3], *position);
        }
    }
}
