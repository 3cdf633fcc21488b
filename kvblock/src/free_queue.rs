//! The queue of free blocks in eviction order.

use crate::id::BlockId;

const UNLINKED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// Doubly linked list threaded through one array, least recently freed block first. Every operation on one
/// block is O(1), including removal from the middle, which lets a prefix hit rescue a free block (vLLM v1
/// `FreeKVCacheBlockQueue`).
#[derive(Clone, Debug)]
pub(crate) struct FreeQueue {
    /// One link per block, then a sentinel head and a sentinel tail, so that no operation has an edge case.
    links: Vec<Link>,
    len: u32,
}

impl FreeQueue {
    /// Number of bytes that the queue takes for each block that it may hold.
    pub(crate) const BYTES_PER_BLOCK: usize = size_of::<Link>();

    /// All of the blocks `0..num_blocks`, in order. O(n).
    pub(crate) fn full(num_blocks: u32) -> Self {
        let mut queue = Self::empty(num_blocks);
        for block in 0..num_blocks {
            queue.append(BlockId::new(block));
        }
        queue
    }

    /// An empty queue with room for the blocks `0..num_blocks`. O(n).
    ///
    /// # Panics
    /// When `num_blocks` leaves no index for the sentinels and the unlinked mark.
    pub(crate) fn empty(num_blocks: u32) -> Self {
        assert!(num_blocks < UNLINKED - 2, "{num_blocks} blocks, limit {}", UNLINKED - 3);
        let (head, tail) = (num_blocks, num_blocks + 1);
        let mut links = vec![Link { prev: UNLINKED, next: UNLINKED }; num_blocks as usize + 2];
        links[head as usize].next = tail;
        links[tail as usize].prev = head;
        Self { links, len: 0 }
    }

    /// Number of blocks in the queue.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Whether `block` is in the queue.
    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.links[block.index()].next != UNLINKED
    }

    /// Takes the least recently freed block.
    pub(crate) fn pop_front(&mut self) -> Option<BlockId> {
        let first = self.links[self.head()].next;
        if first as usize == self.tail() {
            return None;
        }
        let block = BlockId::new(first);
        self.remove(block);
        Some(block)
    }

    /// Takes `block` out of any place in the queue.
    ///
    /// # Panics
    /// When the block is not in the queue.
    pub(crate) fn remove(&mut self, block: BlockId) {
        assert!(self.contains(block), "{block:?} is not among the {} free blocks", self.len);
        let Link { prev, next } = self.links[block.index()];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.links[block.index()] = Link { prev: UNLINKED, next: UNLINKED };
        self.len -= 1;
    }

    /// Adds `block` as the last one to be taken.
    ///
    /// # Panics
    /// When the block is in the queue already.
    pub(crate) fn append(&mut self, block: BlockId) {
        let last = self.links[self.tail()].prev;
        self.insert_after(last, block);
    }

    /// Adds `block` as the first one to be taken.
    ///
    /// # Panics
    /// When the block is in the queue already.
    pub(crate) fn prepend(&mut self, block: BlockId) {
        self.insert_after(u32::try_from(self.head()).expect("the head index is a u32"), block);
    }

    /// The free blocks, in the order in which they will be taken. O(1) per block.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let tail = self.tail();
        let first = self.links[self.head()].next;
        core::iter::successors(Some(first), |&at| Some(self.links[at as usize].next))
            .take_while(move |&at| at as usize != tail)
            .map(BlockId::new)
    }

    fn insert_after(&mut self, prev: u32, block: BlockId) {
        assert!(!self.contains(block), "{block:?} is free already");
        let next = self.links[prev as usize].next;
        self.links[block.index()] = Link { prev, next };
        self.links[prev as usize].next = block.get();
        self.links[next as usize].prev = block.get();
        self.len += 1;
    }

    fn head(&self) -> usize {
        self.links.len() - 2
    }

    fn tail(&self) -> usize {
        self.links.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // 100,000 operations by default.
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 4, ..ProptestConfig::default() })]
        #[test]
        fn behaves_as_a_deque(ops in prop::collection::vec((0_u8..4, 0_u32..12), 0..200)) {
            let mut queue = FreeQueue::full(12);
            let mut model: VecDeque<u32> = (0..12).collect();
            for (op, block) in ops {
                let id = BlockId::new(block);
                let place = model.iter().position(|&b| b == block);
                prop_assert_eq!(queue.contains(id), place.is_some());
                match (op, place) {
                    (0, _) => prop_assert_eq!(queue.pop_front().map(BlockId::get), model.pop_front()),
                    (1, Some(place)) => {
                        queue.remove(id);
                        model.remove(place);
                    }
                    (2, None) => {
                        queue.append(id);
                        model.push_back(block);
                    }
                    (3, None) => {
                        queue.prepend(id);
                        model.push_front(block);
                    }
                    _ => {}
                }
                prop_assert!(queue.iter().map(BlockId::get).eq(model.iter().copied()));
                prop_assert_eq!(queue.len() as usize, model.len());
            }
        }
    }

    #[test]
    #[should_panic(expected = "b1 is not among the 1 free blocks")]
    fn removing_a_used_block_is_an_error() {
        let mut queue = FreeQueue::full(2);
        queue.remove(BlockId::new(1));
        queue.remove(BlockId::new(1));
    }
}
