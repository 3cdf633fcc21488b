//! A fixed ring of staging buffers between the threads that read blocks and the thread that consumes them.
//!
//! Library only: the engine uploads blocks through the mapped buffers of its runtime, which are such a ring already. This is the
//! ring for consumers without one; loom explores it.

use std::collections::VecDeque;

use crate::sync::explored::{Condvar, Mutex, lock, wait};

/// A fixed set of equal buffers that cycle through the states free, filling, ready, in use.
///
/// Any number of threads may fill buffers. Blocks are handed out in the order in which their slots were
/// acquired, whichever is filled first, so a consumer of the ring follows the order of the loads. Memory is
/// allocated once, at the start.
pub struct StagingRing {
    state: Mutex<RingState>,
    /// A slot became free, or the ring closed.
    freed: Condvar,
    /// The oldest slot became ready or was given up, or the ring closed.
    ready: Condvar,
}

struct RingState {
    free: Vec<Vec<u8>>,
    /// Slots handed out to fill and not yet consumed, oldest first.
    order: VecDeque<Ticket>,
    /// Ticket number of `order[0]`.
    first: u64,
    closed: bool,
}

enum Ticket {
    Filling,
    Ready(Vec<u8>),
    GivenUp,
}

impl RingState {
    fn set(&mut self, number: u64, ticket: Ticket) {
        let at = usize::try_from(number - self.first).expect("at most one ticket for each slot");
        self.order[at] = ticket;
    }
}

impl StagingRing {
    /// A ring of `slots` buffers of `slot_bytes` bytes.
    ///
    /// # Panics
    /// When there is no slot.
    #[must_use]
    pub fn new(slots: usize, slot_bytes: usize) -> Self {
        assert!(slots > 0, "a staging ring of {slots} slots passes nothing");
        let free = (0..slots).map(|_| vec![0; slot_bytes]).collect();
        let state = RingState { free, order: VecDeque::with_capacity(slots), first: 0, closed: false };
        Self { state: Mutex::new(state), freed: Condvar::new(), ready: Condvar::new() }
    }

    /// Takes a free slot to fill, waiting if there is none; `None` once the ring is closed.
    pub fn acquire(&self) -> Option<Filling<'_>> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(buffer) = state.free.pop() {
                let number = state.first + state.order.len() as u64;
                state.order.push_back(Ticket::Filling);
                return Some(Filling { ring: self, number, buffer });
            }
            state = wait(&self.freed, state);
        }
    }

    /// Takes the oldest block once it is ready, skipping slots that were given up; `None` when the ring is
    /// closed and every slot that was handed out has been consumed.
    pub fn take(&self) -> Option<InUse<'_>> {
        let mut state = lock(&self.state);
        loop {
            match state.order.front() {
                Some(Ticket::Filling) => {}
                Some(Ticket::Ready(_) | Ticket::GivenUp) => {
                    let number = state.first;
                    state.first += 1;
                    if let Some(Ticket::Ready(buffer)) = state.order.pop_front() {
                        return Some(InUse { ring: self, number, buffer });
                    }
                    continue;
                }
                None if state.closed => return None,
                None => {}
            }
            state = wait(&self.ready, state);
        }
    }

    /// Stops handing out slots to fill; those being filled can still be published.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.freed.notify_all();
        self.ready.notify_all();
    }

    fn free(&self, buffer: Vec<u8>) {
        lock(&self.state).free.push(buffer);
        self.freed.notify_one();
    }
}

/// A slot being filled. Dropping it gives the slot up; consumers never see it.
pub struct Filling<'a> {
    ring: &'a StagingRing,
    number: u64,
    buffer: Vec<u8>,
}

impl Filling<'_> {
    /// Number of slots acquired before this one since the start.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The buffer, which still holds whatever its last user left in it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Hands the block on.
    pub fn publish(mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        lock(&self.ring.state).set(self.number, Ticket::Ready(buffer));
        // Consumers wait for the oldest slot, which may be this one for any of them.
        self.ring.ready.notify_all();
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        // `publish` leaves an empty buffer behind; slots of zero bytes hold no capacity either way.
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.capacity() == 0 {
            return;
        }
        lock(&self.ring.state).set(self.number, Ticket::GivenUp);
        self.ring.ready.notify_all();
        self.ring.free(buffer);
    }
}

/// A ready block. Dropping it frees the slot.
pub struct InUse<'a> {
    ring: &'a StagingRing,
    number: u64,
    buffer: Vec<u8>,
}

impl InUse<'_> {
    /// Number of slots acquired before this one since the start; a gap means that slots were given up.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The bytes of the block.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.ring.free(std::mem::take(&mut self.buffer));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn fill(ring: &StagingRing, value: u8) {
        if let Some(mut slot) = ring.acquire() {
            slot.bytes_mut()[0] = value;
            slot.publish();
        }
    }

    /// One thread fills three blocks through two slots: order kept, nobody sleeps for ever.
    #[test]
    fn blocks_arrive_in_order_through_fewer_slots() {
        loom::model(|| {
            let ring = Arc::new(StagingRing::new(2, 1));
            let producer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    (1..=3).for_each(|value| fill(&ring, value));
                    ring.close();
                })
            };
            let mut seen = Vec::new();
            while let Some(block) = ring.take() {
                seen.push(block.bytes()[0]);
            }
            producer.join().unwrap();
            assert_eq!(seen, [1, 2, 3]);
        });
    }

    /// Two threads fill through one slot, so each waits for the consumer and for the other.
    #[test]
    fn two_fillers_share_one_slot_without_losing_a_wake_up() {
        loom::model(|| {
            let ring = Arc::new(StagingRing::new(1, 1));
            let producers = [1, 2].map(|value| {
                let ring = ring.clone();
                thread::spawn(move || fill(&ring, value))
            });
            let take = || ring.take().unwrap().bytes()[0];
            let mut seen = [take(), take()];
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
        });
    }

    /// A slot given up between two published ones is skipped and comes back.
    #[test]
    fn a_given_up_slot_is_skipped_and_reused() {
        loom::model(|| {
            let ring = Arc::new(StagingRing::new(2, 1));
            let producer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    fill(&ring, 1);
                    drop(ring.acquire());
                    fill(&ring, 3);
                })
            };
            let first = ring.take().unwrap().bytes()[0];
            let second = ring.take().unwrap().bytes()[0];
            producer.join().unwrap();
            assert_eq!((first, second), (1, 3));
            let state = lock(&ring.state);
            assert_eq!((state.free.len(), state.order.len()), (2, 0));
        });
    }

    /// Closing wakes a filler that waits for a slot and a consumer that waits for a block.
    #[test]
    fn close_wakes_both_sides() {
        loom::model(|| {
            let ring = Arc::new(StagingRing::new(1, 1));
            let held = ring.acquire().unwrap();
            let waiting = {
                let ring = ring.clone();
                thread::spawn(move || ring.acquire().is_none())
            };
            let consumer = {
                let ring = ring.clone();
                thread::spawn(move || ring.take().is_none())
            };
            ring.close();
            drop(held);
            assert!(waiting.join().unwrap());
            assert!(consumer.join().unwrap());
        });
    }
}
