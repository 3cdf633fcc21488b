//! The waiting queue: finds the next sequence without a scan of all waiting ones.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

use kvblock::SeqId;

/// Place of a sequence in the queue; the least is served first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuePlace {
    level: i64,
    arrival: u64,
    seq: SeqId,
}

impl QueuePlace {
    /// The place that the priority policy gives a sequence.
    pub(crate) const fn of_rank((level, arrival, seq): (i64, u64, SeqId)) -> Self {
        Self { level, arrival, seq }
    }

    const fn rank(self) -> (i64, u64, SeqId) {
        (self.level, self.arrival, self.seq)
    }
}

// Written out, because tests count the comparisons: whatever finds a place in the queue makes some.
impl Ord for QueuePlace {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::count_look();
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for QueuePlace {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Waiting sequences in the order of service. Every change is O(log sequences).
#[derive(Default, Debug)]
pub(crate) struct WaitingQueue {
    places: BTreeSet<QueuePlace>,
    /// Places of sequences that hold blocks which were loaded while they waited.
    loaded: BTreeSet<QueuePlace>,
    /// Level of the sequence that was queued last at the front; the next field is the level of the one queued last at
    /// the back.
    front: i64,
    back: i64,
}

impl WaitingQueue {
    /// A place before all others, under FCFS.
    pub(crate) fn front(&mut self, seq: SeqId) -> QueuePlace {
        self.front -= 1;
        QueuePlace { level: self.front, arrival: 0, seq }
    }

    /// A place after all others, under FCFS.
    pub(crate) fn back(&mut self, seq: SeqId) -> QueuePlace {
        self.back += 1;
        QueuePlace { level: self.back, arrival: 0, seq }
    }

    pub(crate) fn insert(&mut self, place: QueuePlace) {
        assert!(self.places.insert(place), "{place:?} is taken");
    }

    pub(crate) fn remove(&mut self, place: QueuePlace) {
        assert!(self.places.remove(&place), "nobody waits at {place:?}");
        self.loaded.remove(&place);
    }

    /// Notes whether the sequence at `place` holds blocks that were loaded.
    pub(crate) fn set_loaded(&mut self, place: QueuePlace, loaded: bool) {
        if loaded {
            self.loaded.insert(place)
        } else {
            self.loaded.remove(&place)
        };
    }

    /// The first sequence after `place`; if `place` is `None`, the first of all.
    pub(crate) fn next(&self, place: Option<QueuePlace>) -> Option<(QueuePlace, SeqId)> {
        let behind = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.places.range((behind, Bound::Unbounded)).next().map(|&place| (place, place.seq))
    }

    /// The last sequence with loaded blocks that comes after `place`; if `place` is `None`, the last of all.
    pub(crate) fn last_loaded(&self, place: Option<QueuePlace>) -> Option<SeqId> {
        let behind = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.loaded.range((behind, Bound::Unbounded)).next_back().map(|place| place.seq)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.places.iter().map(|place| {
            #[cfg(test)]
            tests::count_look();
            place.seq
        })
    }
}
