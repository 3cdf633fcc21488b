//! Matrices of every storage type: those of the self-test.

pub(crate) use attn_kernels::self_test::layer::floats;

use dense_kernels::Dtype;
use proptest::prelude::*;

pub(crate) fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}
