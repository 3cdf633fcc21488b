//! All sequences by id.

use std::ops::Index;

use kvblock::SeqId;
use rustc_hash::FxHashMap;

use crate::sequence::Sequence;

/// The waiting and the running sequences. There is no way to go through them: a call that looks at each would cost more the
/// more requests wait.
#[derive(Default, Debug)]
pub(crate) struct Sequences(FxHashMap<SeqId, Sequence>);

impl Sequences {
    pub(crate) fn get(&self, seq: &SeqId) -> Option<&Sequence> {
        self.0.get(seq)
    }

    pub(crate) fn get_mut(&mut self, seq: &SeqId) -> Option<&mut Sequence> {
        self.0.get_mut(seq)
    }

    pub(crate) fn contains_key(&self, seq: &SeqId) -> bool {
        self.0.contains_key(seq)
    }

    pub(crate) fn insert(&mut self, seq: Sequence) {
        self.0.insert(seq.id, seq);
    }

    pub(crate) fn remove(&mut self, seq: &SeqId) -> Option<Sequence> {
        self.0.remove(seq)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Index<&SeqId> for Sequences {
    type Output = Sequence;

    fn index(&self, seq: &SeqId) -> &Sequence {
        &self.0[seq]
    }
}
