//! Storage types of matrices.

use dense_kernels::Dtype;
use proptest::prelude::*;

pub(crate) fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}
