//! Properties of kernels over cases of the self-test. Shared by the crates with kernels.

use attn_kernels::gpu::Gpu;
use attn_kernels::self_test::Case;
use bytemuck::Pod;

use super::device::described;

/// Buffers of a case as its kernel leaves them.
#[track_caller]
pub(crate) fn after(gpu: &Gpu, case: &Case) -> Vec<Vec<u32>> {
    case.after(gpu).unwrap_or_else(|fault| panic!("{}: {fault}", described(&case.variant)))
}

/// Fails unless the kernel of a case leaves what its reference does.
#[track_caller]
pub(crate) fn assert_leaves_reference(gpu: &Gpu, case: &Case) {
    case.run(gpu).unwrap_or_else(|fault| panic!("{}: {fault}", described(&case.variant)));
}

/// Fails unless the kernels of two cases leave the same bits in the buffers that they must write, as far as `case` reaches: rows
/// of a product may be the first of another's.
#[track_caller]
pub(crate) fn assert_same_bits(gpu: &Gpu, case: &Case, other: &Case) {
    assert_leaves(gpu, case, &written(gpu, other));
}

/// Buffers that the kernel of a case must write, as it leaves them.
#[track_caller]
pub(crate) fn written(gpu: &Gpu, case: &Case) -> Vec<Vec<u32>> {
    let mut left = after(gpu, case);
    case.wants.iter().map(|(at, _)| std::mem::take(&mut left[*at])).collect()
}

/// Fails unless what the kernel of a case must write begins as `all` does.
#[track_caller]
pub(crate) fn assert_leaves(gpu: &Gpu, case: &Case, all: &[Vec<u32>]) {
    let (left, what) = (written(gpu, case), described(&case.variant));
    assert_eq!(left.len(), all.len(), "{what}");
    for (buffer, (left, all)) in left.iter().zip(all).enumerate() {
        assert!(!left.is_empty() && left.len() <= all.len(), "{what}: {} and {}", left.len(), all.len());
        if let Some(word) = left.iter().zip(all).position(|(left, all)| left != all) {
            let [left, all] = [left, all].map(|words| f32::from_bits(words[word]));
            panic!("{what}: word {word} of result {buffer} is {left:e} and {all:e}");
        }
    }
}

/// Parameters of the first dispatch of a case.
pub(crate) fn params<P: Pod>(case: &Case) -> P {
    bytemuck::pod_read_unaligned(&case.dispatches[0])
}

/// The case with other dispatches.
pub(crate) fn dispatched<P: Pod>(case: &Case, dispatches: impl IntoIterator<Item = P>) -> Case {
    let dispatches = dispatches.into_iter().map(|params| bytemuck::bytes_of(&params).into());
    Case { dispatches: dispatches.collect(), ..case.clone() }
}
