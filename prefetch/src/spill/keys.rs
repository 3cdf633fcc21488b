//! State of every block of a spill: never written, being written, written with a checksum, or lost.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{SpillRun, SpillShape, SpillTraffic};
use crate::sync::lock;

/// Checksum of a block: XXH3-64, fast enough to run at memory speed.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// State of the contents of a block of a region.
#[derive(Clone, Debug, Default)]
pub(super) enum Contents {
    /// Nothing was written.
    #[default]
    Zeros,
    /// Bytes with this checksum.
    Sum(u64),
    /// Bytes that could not be written.
    Lost(Arc<str>),
}

impl Contents {
    pub(super) fn is_written(&self) -> bool {
        matches!(self, Self::Sum(_))
    }
}

#[derive(Clone, Debug, Default)]
struct Key {
    contents: Contents,
    /// Number of writes of the block in progress.
    pending: u32,
    /// Number of writes so far.
    writes: u32,
}

/// States of all blocks.
#[derive(Debug)]
pub(super) struct Keys {
    state: Mutex<State>,
    /// Condition variable that signals the end of a write, or that the spill is closed.
    ended: Condvar,
    blocks: u32,
    block_bytes: usize,
}

#[derive(Debug)]
struct State {
    keys: Vec<Key>,
    /// Number of writes of runs in progress.
    pending: u64,
    traffic: SpillTraffic,
    closed: bool,
}

impl Keys {
    pub(super) fn new(shape: SpillShape) -> Self {
        let keys = vec![Key::default(); shape.regions as usize * shape.blocks as usize];
        let state = State { keys, pending: 0, traffic: SpillTraffic::default(), closed: false };
        let SpillShape { blocks, block_bytes, .. } = shape;
        Self { state: Mutex::new(state), ended: Condvar::new(), blocks, block_bytes }
    }

    /// Indices of the blocks of a run in the list of states.
    fn places(&self, run: &SpillRun) -> std::ops::Range<usize> {
        let first = run.region as usize * self.blocks as usize;
        first + run.blocks.start as usize..first + run.blocks.end as usize
    }

    pub(super) fn begin_write(&self, run: &SpillRun) {
        let mut state = lock(&self.state);
        state.pending += 1;
        state.keys[self.places(run)].iter_mut().for_each(|key| {
            key.pending += 1;
            key.writes = key.writes.wrapping_add(1);
        });
    }

    /// Records that a run was written, or the reason why it was not.
    pub(super) fn end_write(&self, run: &SpillRun, bytes: &[u8], failed: Option<Arc<str>>) {
        let contents: Vec<Contents> = match &failed {
            None => bytes.chunks_exact(self.block_bytes).map(|block| Contents::Sum(sum(block))).collect(),
            Some(reason) => vec![Contents::Lost(Arc::clone(reason)); run.blocks.len()],
        };
        let mut state = lock(&self.state);
        match failed {
            None => state.traffic.written_bytes += bytes.len() as u64,
            Some(_) => state.traffic.errors += run.blocks.len() as u64,
        }
        state.pending -= 1;
        for (key, contents) in state.keys[self.places(run)].iter_mut().zip(contents) {
            *key = Key { contents, pending: key.pending - 1, ..*key };
        }
        self.ended.notify_all();
    }

    /// Number of writes of a block so far.
    pub(super) fn writes(&self, region: u32, block: u32) -> u32 {
        let place = self.places(&SpillRun { region, blocks: block..block + 1 }).start;
        lock(&self.state).keys[place].writes
    }

    /// Contents of the blocks of a run, once none of them is being written.
    pub(super) fn when_written(&self, run: &SpillRun) -> Vec<Contents> {
        let places = self.places(run);
        let busy =
            |state: &mut State| !state.closed && state.keys[places.clone()].iter().any(|key| key.pending > 0);
        let state = self.ended.wait_while(lock(&self.state), busy).unwrap_or_else(PoisonError::into_inner);
        state.keys[places].iter().map(|key| key.contents.clone()).collect()
    }

    pub(super) fn settle(&self) {
        let busy = |state: &mut State| !state.closed && state.pending > 0;
        drop(self.ended.wait_while(lock(&self.state), busy).unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn count_read(&self, bytes: usize, errors: usize) {
        let traffic = &mut lock(&self.state).traffic;
        traffic.read_bytes += bytes as u64;
        traffic.errors += errors as u64;
    }

    pub(super) fn traffic(&self) -> SpillTraffic {
        lock(&self.state).traffic
    }

    /// Wakes all waiting threads, and lets none wait again.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.ended.notify_all();
    }
}
