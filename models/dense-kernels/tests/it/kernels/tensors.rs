//! Matrices of every storage type: those of the self-test.

pub(crate) use attn_kernels::self_test::layer::floats;
pub(crate) use dense_kernels::self_test::tensors::random;

use dense_kernels::Dtype;
use proptest::prelude::*;

pub(crate) fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}
