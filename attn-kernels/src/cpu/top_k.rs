//! Reference of `top_k`.

use crate::kernel::top_k::{Output, TopKParams, Transform};

/// Writes the k largest scores of each row `[first score, number of scores, k, base]` to `out`; ties go to the lower
/// index.
pub fn top_k(
    params: &TopKParams,
    output: Output,
    scores: &[f32],
    rows: &[[u32; 4]],
    table: &[u32],
    out: &mut [u32],
) {
    let stride = params.out_stride as usize;
    for (index, &[first, len, k, base]) in rows.iter().enumerate().take(params.rows as usize) {
        let scores = &scores[first as usize..(first + len) as usize];
        let chosen = sparse_select::topk::top_k(scores, k as usize);
        match output {
            Output::List => {
                let count = u32::try_from(chosen.len()).expect("at most k");
                let copies = params.copies as usize;
                for list in out[index * copies * stride..(index + 1) * copies * stride].chunks_mut(stride) {
                    list[0] = count;
                    list[1..=chosen.len()].copy_from_slice(&chosen);
                }
            }
            Output::Positions(transform) => {
                let row = &mut out[index * stride..(index + 1) * stride];
                row.fill(u32::MAX);
                for (to, &position) in row.iter_mut().zip(&chosen) {
                    *to = transformed(transform, params.page_size, table, base, position);
                }
            }
        }
    }
}

/// Applies the transform to a position.
#[must_use]
pub fn transformed(transform: Transform, page_size: u32, table: &[u32], base: u32, position: u32) -> u32 {
    match transform {
        Transform::None => position,
        Transform::Ragged => base + position,
        Transform::Paged => table[(base + position / page_size) as usize] * page_size + position % page_size,
    }
}
