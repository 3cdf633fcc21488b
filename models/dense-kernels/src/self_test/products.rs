//! Storage types, sizes and tolerances of products, which cases of one matrix and of several share.

use attn_kernels::Variant;
use attn_kernels::cpu::Tolerance;
use attn_kernels::self_test::{Spec, filled};
use half::f16;

use crate::Dtype;
use crate::cast::u32_of;
use crate::kernel::matmul;
use crate::pack::{BLOCK, Format};

/// Tolerance of f32 sums of 2,048 products. Products have size 1/3 and sums size 15, or twice as much with normed
/// activations.
pub(super) const SUM: Tolerance = Tolerance { abs: 2e-4, rel: 2e-5 };
/// Tolerance of the product of two sums as in `SUM`, one of which passes through `exp`.
pub(super) const GATED: Tolerance = Tolerance { abs: 4e-3, rel: 4e-4 };

/// Storage types that the variant's weights module reads.
pub(super) fn dtypes(variant: &Variant) -> impl Iterator<Item = Dtype> + use<> {
    let weights = filled(variant, matmul::WEIGHTS);
    Dtype::ALL.into_iter().rev().filter(move |dtype| Format::from(*dtype) == weights)
}

/// A storage type that the variant's weights module reads.
pub(super) fn dtype(variant: &Variant) -> Dtype {
    dtypes(variant).next().expect("every weights module reads a storage type")
}

/// Returns a number of blocks per row, at most `usual`, that whole blocks of the storage type fill.
pub(super) fn whole_blocks(variant: &Variant, spec: &Spec, usual: u32) -> u32 {
    let unit = u32_of(dtype(variant).block_elems().div_ceil(BLOCK));
    unit * spec.named(|size| size.width.div_ceil(u32_of(BLOCK) * unit), usual / unit, 1..=usual / unit)
}

/// Rounds values to f16, two per word.
pub(super) fn halves(values: &[f32]) -> Vec<u32> {
    let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
    values.chunks_exact(2).map(|pair| half(pair[0]) | half(pair[1]) << 16).collect()
}
