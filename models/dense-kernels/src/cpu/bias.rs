//! Reference of `bias`.

use crate::kernel::bias::{BiasForm, BiasParams};

/// Stores `bias` in columns of every row of `y`, or adds `bias` to them.
pub fn bias(params: &BiasParams, form: BiasForm, bias: &[f32], y: &mut [f32]) {
    for row in y.chunks_mut(params.stride as usize).take(params.rows as usize) {
        for (y, bias) in row[params.first as usize..].iter_mut().zip(bias) {
            *y = match form {
                BiasForm::Store => *bias,
                BiasForm::Add => *y + bias,
            };
        }
    }
}
