//! Progress of loading.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DecoderConfig, Role};

/// Counts the weights that a decoder has read, while it is loaded on another thread. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicU64,
    elements: AtomicU64,
    total_elements: AtomicU64,
}

/// Weights that were read so far. A tensor counts from when its packing begins, a tensor of all experts as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes, in the types that kernels read.
    pub bytes: u64,
    /// Elements.
    pub elements: u64,
    /// Elements of the whole model; 0 before loading begins.
    pub total_elements: u64,
}

impl Loaded {
    /// Whether there are weights to come.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.elements < self.total_elements
    }
}

impl LoadProgress {
    /// The weights that were read so far. The three numbers are those of one moment only while nothing is read.
    #[must_use]
    pub fn loaded(&self) -> Loaded {
        let Counts { bytes, elements, total_elements } = &*self.0;
        let [bytes, elements, total_elements] =
            [bytes, elements, total_elements].map(|count| count.load(Ordering::Relaxed));
        Loaded { bytes, elements, total_elements }
    }

    /// Begins anew, for the weights of `config`. O(tensors).
    pub(super) fn begin(&self, config: &DecoderConfig) {
        let weights = config.tensors().into_iter().filter(|role| !matches!(role, Role::RouterTable(_)));
        let elements = |role| config.shape(role).iter().map(|n| *n as u64).product::<u64>();
        let total: u64 = weights.map(elements).sum();
        for (count, value) in [(&self.0.bytes, 0), (&self.0.elements, 0), (&self.0.total_elements, total)] {
            count.store(value, Ordering::Relaxed);
        }
    }

    /// Counts a tensor.
    pub(super) fn add(&self, bytes: u64, elements: u64) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.0.elements.fetch_add(elements, Ordering::Relaxed);
    }
}
