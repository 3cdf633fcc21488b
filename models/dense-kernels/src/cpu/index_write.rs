//! Reference of `index_write`.

use attn_kernels::kernel::KvShape;

use crate::kernel::index_write::IndexWriteParams;

/// Writes the key of each row to its slot of `keys`, unrounded, at [`KvShape::k_index`].
pub fn index_write(shape: &KvShape, params: &IndexWriteParams, x: &[f32], slots: &[i32], keys: &mut [f32]) {
    let (size, dim) = (shape.block_size as usize, shape.head_dim as usize);
    for (row, slot) in slots.iter().enumerate().take(params.rows as usize) {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        let from = &x[row * params.row_stride as usize + params.first as usize..][..dim];
        for (d, value) in from.iter().enumerate() {
            keys[shape.k_index(slot / size, 0, slot % size, d)] = *value;
        }
    }
}
