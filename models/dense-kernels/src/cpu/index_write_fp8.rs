//! Reference of `index_write_fp8`.

use sparse_select::dsa::fp8::{self, ScaleFormat};
use sparse_select::dsa::logits::PagedIndexKeys;

use crate::kernel::index_write_fp8::IndexWriteFp8Params;

/// Rotates the key of `head_dim` elements of each row, rounds it to codes and stores it in its slot.
pub fn index_write_fp8(
    head_dim: usize,
    params: &IndexWriteFp8Params,
    x: &[f32],
    slots: &[i32],
    keys: &mut PagedIndexKeys,
) {
    for (row, slot) in slots.iter().enumerate().take(params.rows as usize) {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        let from = row * params.row_stride as usize + params.first as usize;
        let mut key = x[from..from + head_dim].to_vec();
        fp8::hadamard(&mut key);
        let (codes, scale) = fp8::quantise(&key, ScaleFormat::Ue8m0);
        keys.store(slot, &codes, scale);
    }
}
