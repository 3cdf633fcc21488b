use crate::Ending;

/// State of a sequence.
///
/// ```text
///            admit              swap out
///  Waiting -------> Running ---------------> Swapped
///     ^               |  ^                      |
///     +---------------+  +----------------------+
///        recompute               swap in             any but Finished -> Finished
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SeqState {
    /// Has no blocks; will be (re)computed from its first token.
    Waiting,
    /// Has blocks on the GPU.
    Running,
    /// Has blocks on the CPU.
    Swapped,
    /// Done.
    Finished(Ending),
}

impl SeqState {
    /// Whether the sequence is done.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Finished(_))
    }

    pub(super) const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Waiting, Self::Running)
                | (Self::Running, Self::Waiting | Self::Swapped)
                | (Self::Swapped, Self::Running)
                | (Self::Waiting | Self::Running | Self::Swapped, Self::Finished(_))
        )
    }
}
