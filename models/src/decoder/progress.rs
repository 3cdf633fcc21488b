//! Progress of loading.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{DecoderConfig, Role, Size};

/// Counts the weights that a decoder has read while it is loaded on another thread. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    loaded: Loaded,
    /// Size of the tensors whose loading has begun, at least as large as the loaded part.
    begun: Size,
}

/// Weights that were read so far. Matrices are counted column by column as they are packed, or row by row if they are quantised
/// first; other tensors as a whole, together with the next matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes, in the types that kernels read.
    pub bytes: u64,
    /// Number of elements.
    pub elements: u64,
    /// Number of elements of the whole model; 0 before loading begins.
    pub total_elements: u64,
}

impl Loaded {
    /// Whether loading goes on.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.elements < self.total_elements
    }
}

impl LoadProgress {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the weights that were read so far.
    #[must_use]
    pub fn loaded(&self) -> Loaded {
        self.counts().loaded
    }

    /// Starts counting the weights of `config`. O(tensors).
    pub(super) fn begin(&self, config: &DecoderConfig) {
        let weights = config.tensors().into_iter().filter(|role| !matches!(role, Role::RouterTable(_)));
        let elements = |role| config.shape(role).iter().map(|n| *n as u64).product::<u64>();
        let total_elements = weights.map(elements).sum();
        *self.counts() =
            Counts { loaded: Loaded { total_elements, ..Loaded::default() }, begun: Size::default() };
    }

    /// Begins to count a tensor of `size`, whose part `done` was counted before.
    pub(crate) fn begin_tensor(&self, size: Size, done: Size) {
        let mut counts = self.counts();
        counts.begun.bytes += size.bytes - done.bytes.min(size.bytes);
        counts.begun.elements += size.elements - done.elements.min(size.elements);
    }

    /// Counts a part of a tensor that has to be quantised before it is packed.
    pub(super) fn add_ahead(&self, part: Size) {
        let mut counts = self.counts();
        counts.begun.bytes += part.bytes;
        counts.begun.elements += part.elements;
        counts.add(part);
    }

    /// Begins to pack `matrix`, and counts everything that was begun earlier as loaded.
    pub(crate) fn begin_matrix(&self, matrix: Size) {
        let mut counts = self.counts();
        let Counts { loaded, begun } = &mut *counts;
        loaded.bytes = loaded.bytes.max(begun.bytes.saturating_sub(matrix.bytes));
        loaded.elements = loaded.elements.max(begun.elements.saturating_sub(matrix.elements));
    }

    /// Counts a packed part of a matrix.
    pub(crate) fn add(&self, part: Size) {
        self.counts().add(part);
    }

    /// Marks everything that was begun as done.
    pub(super) fn end(&self) {
        self.begin_matrix(Size::default());
    }
}

impl Counts {
    /// Counts a part, up to the size that was begun: a matrix may be packed in a wider type than it is counted in.
    fn add(&mut self, part: Size) {
        self.loaded.bytes = (self.loaded.bytes + part.bytes).min(self.begun.bytes);
        self.loaded.elements = (self.loaded.elements + part.elements).min(self.begun.elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(elements: u64) -> Size {
        Size { bytes: 2 * elements, elements }
    }

    #[test]
    fn matrices_count_while_they_are_packed() {
        let progress = LoadProgress::default();
        let elements = || (progress.loaded().elements, progress.loaded().bytes);
        progress.begin_tensor(size(10), Size::default());
        progress.begin_tensor(size(100), Size::default());
        assert_eq!(elements(), (0, 0));
        progress.begin_matrix(size(100));
        assert_eq!(elements(), (10, 20));
        progress.add(size(60));
        assert_eq!(elements(), (70, 140));
        // A vector comes in the midst of it, and the rest of the matrix in a wider type.
        progress.begin_tensor(size(5), Size::default());
        progress.add(Size { bytes: 160, elements: 40 });
        assert_eq!(elements(), (110, 230));
        // A tensor that was quantised when it came.
        progress.add_ahead(size(30));
        progress.begin_tensor(size(30), size(30));
        assert_eq!(elements(), (140, 290));
        progress.end();
        assert_eq!(elements(), (145, 290));
    }
}
