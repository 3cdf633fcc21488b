use core::fmt;

use super::{BlockSpaceError, Ending, SeqState, Sequence};
use crate::SeqId;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct RequestId(u64);

impl RequestId {
    /// Wraps a raw id.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The raw id.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The sequences of one request: admitted, preempted and resumed together, since they share blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceGroup {
    id: RequestId,
    /// Time of arrival in any unit; the earliest is served first.
    arrival: u64,
    sequences: Vec<Sequence>,
}

impl SequenceGroup {
    /// A group of `sequences`, which all start from the same prompt.
    ///
    /// # Errors
    /// [`BlockSpaceError::DuplicateSeq`] when two sequences have the same id.
    pub fn new(
        id: RequestId,
        arrival: u64,
        sequences: impl IntoIterator<Item = Sequence>,
    ) -> Result<Self, BlockSpaceError> {
        let mut group = Self { id, arrival, sequences: Vec::new() };
        for sequence in sequences {
            group.add(sequence)?;
        }
        Ok(group)
    }

    /// Adds a sequence, as after a [fork](Sequence::fork).
    ///
    /// # Errors
    /// [`BlockSpaceError::DuplicateSeq`] when the group already has a sequence with its id.
    pub fn add(&mut self, sequence: Sequence) -> Result<(), BlockSpaceError> {
        if self.get(sequence.id()).is_some() {
            return Err(BlockSpaceError::DuplicateSeq { seq: sequence.id() });
        }
        self.sequences.push(sequence);
        Ok(())
    }

    /// Removes a sequence, such as a dropped beam. The caller must free its blocks.
    pub fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        let at = self.sequences.iter().position(|s| s.id() == seq)?;
        Some(self.sequences.remove(at))
    }

    /// The sequence with that id.
    #[must_use]
    pub fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.sequences.iter().find(|s| s.id() == seq)
    }

    /// The sequence with that id.
    #[must_use]
    pub fn get_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.sequences.iter_mut().find(|s| s.id() == seq)
    }

    /// The id of the request.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// When the request arrived.
    #[must_use]
    pub const fn arrival(&self) -> u64 {
        self.arrival
    }

    /// All sequences, in the order they were added.
    #[must_use]
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// The sequences in `state`, in the order they were added.
    pub fn in_state(&self, state: SeqState) -> impl Iterator<Item = &Sequence> + Clone {
        self.sequences.iter().filter(move |s| s.state() == state)
    }

    /// The sequences that are not finished.
    pub fn unfinished(&self) -> impl Iterator<Item = &Sequence> + Clone {
        self.sequences.iter().filter(|s| !s.state().is_finished())
    }

    /// Number of sequences in `state`.
    #[must_use]
    pub fn num_in_state(&self, state: SeqState) -> u32 {
        u32::try_from(self.in_state(state).count()).expect("sequences of a request fit a u32")
    }

    /// Number of unfinished sequences.
    #[must_use]
    pub fn num_unfinished(&self) -> u32 {
        u32::try_from(self.unfinished().count()).expect("sequences of a request fit a u32")
    }

    /// Whether every sequence is finished.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.unfinished().next().is_none()
    }

    /// Moves every sequence in state `from` to state `to`.
    ///
    /// # Errors
    /// [`BlockSpaceError::IllegalTransition`] when there is no such transition; no sequence moves then.
    pub fn transition(&mut self, from: SeqState, to: SeqState) -> Result<(), BlockSpaceError> {
        self.sequences.iter_mut().filter(|s| s.state() == from).try_for_each(|s| s.set_state(to))
    }

    /// Ends every sequence that is not finished yet.
    pub fn finish(&mut self, reason: Ending) {
        for sequence in self.sequences.iter_mut().filter(|s| !s.state().is_finished()) {
            sequence
                .set_state(SeqState::Finished(reason))
                .expect("every unfinished state may become finished");
        }
    }
}
