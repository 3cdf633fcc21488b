//! Reference of `state_write`.

use crate::kernel::state_write::StateWriteParams;

/// Copies every row with a slot to its place in `states`.
pub fn state_write(params: &StateWriteParams, x: &[f32], slots: &[i32], states: &mut [f32]) {
    let [width, page] = [params.quads, params.page].map(|quads| quads as usize * 4);
    let block = params.block_size as usize;
    for (row, slot) in x.chunks_exact(width).zip(slots).take(params.rows as usize) {
        if let Ok(slot) = usize::try_from(*slot) {
            let at = slot / block * page + slot % block * width;
            states[at..at + width].copy_from_slice(row);
        }
    }
}
