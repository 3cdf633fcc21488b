//! An index of the cached blocks of many replicas.

use kvblock::BlockHash;
use rustc_hash::FxHashMap;

/// One of several engines of the same model and settings: a device of a process, or a process of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplicaId(u32);

impl ReplicaId {
    /// The replica with this number.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The number of the replica, from 0.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the replica as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of replicas, with one bit for each replica.
type Bits = Vec<u64>;

const fn bit(replica: u32) -> (usize, u64) {
    ((replica / 64) as usize, 1 << (replica % 64))
}

/// Replicas that hold a block. Most blocks are in one cache alone.
#[derive(Clone, Debug)]
enum Holders {
    One(u32),
    Many(Box<Bits>),
}

/// The cached blocks of many replicas by hash. It gives the longest prefix of a prompt that each replica holds.
///
/// It follows what each cache says that it stores and removes, in any order between replicas. A hash is the chain of all
/// tokens up to the end of its block, so equal hashes are equal prefixes if model and settings are the same.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    holders: FxHashMap<BlockHash, Holders>,
    /// Number of blocks of each replica.
    held: Vec<usize>,
}

impl PrefixIndex {
    /// An index of `num_replicas` empty caches.
    #[must_use]
    pub fn new(num_replicas: u32) -> Self {
        Self { holders: FxHashMap::default(), held: vec![0; num_replicas as usize] }
    }

    /// Number of replicas.
    #[must_use]
    pub fn num_replicas(&self) -> u32 {
        u32::try_from(self.held.len()).expect("made from a u32")
    }

    /// Number of different blocks that some replica holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether no replica holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Number of blocks that a replica holds.
    ///
    /// # Panics
    /// Like all methods about one replica, if there is no such replica.
    #[must_use]
    pub fn held(&self, replica: ReplicaId) -> usize {
        self.held[replica.index()]
    }

    /// Number of bytes of the index, without the overhead of the allocator.
    #[must_use]
    pub fn memory(&self) -> usize {
        let shared = self.holders.values().filter(|holders| matches!(holders, Holders::Many(_))).count();
        let shared_bytes = size_of::<Bits>() + self.words() * size_of::<u64>();
        // Of a hash table some eighth is never used, and each entry has a byte of control.
        let entry = size_of::<(BlockHash, Holders)>() + 1;
        self.holders.capacity() * 8 / 7 * entry + shared * shared_bytes + self.held.len() * size_of::<usize>()
    }

    /// Enters a block of a replica; false if the replica holds it already.
    pub fn store(&mut self, replica: ReplicaId, hash: BlockHash) -> bool {
        let (words, count) = (self.words(), &mut self.held[replica.index()]);
        let new = match self.holders.entry(hash) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Holders::One(replica.0));
                true
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => entry.get_mut().add(replica.0, words),
        };
        *count += usize::from(new);
        new
    }

    /// Removes a block of a replica; false if the replica does not hold it.
    pub fn remove(&mut self, replica: ReplicaId, hash: &BlockHash) -> bool {
        let Some(holders) = self.holders.get_mut(hash) else { return false };
        let (removed, rest) = holders.take(replica.0);
        if removed {
            self.held[replica.index()] -= 1;
        }
        if !rest {
            self.holders.remove(hash);
        }
        removed
    }

    /// Removes all blocks of a replica.
    ///
    /// # Complexity
    /// O(blocks of all replicas).
    pub fn clear(&mut self, replica: ReplicaId) {
        if std::mem::take(&mut self.held[replica.index()]) == 0 {
            return;
        }
        self.holders.retain(|_, holders| holders.take(replica.0).1);
    }

    /// The number of leading blocks that each replica holds, in the order of replicas.
    ///
    /// # Complexity
    /// O(replicas + blocks of the longest prefix · replicas / 64).
    #[must_use]
    pub fn longest(&self, hashes: &[BlockHash]) -> Vec<u32> {
        longest(&[self], hashes)
    }

    fn words(&self) -> usize {
        self.held.len().div_ceil(64)
    }

    fn add_to(&self, hash: &BlockHash, bits: &mut [u64]) {
        match self.holders.get(hash) {
            Some(Holders::One(replica)) => {
                let (word, mask) = bit(*replica);
                bits[word] |= mask;
            }
            Some(Holders::Many(holders)) => {
                bits.iter_mut().zip(&**holders).for_each(|(to, from)| *to |= from)
            }
            None => {}
        }
    }
}

/// Number of leading blocks that each replica holds in any of `indices`, which all cover the same replicas: see
/// [`PrefixIndex::longest`].
pub(crate) fn longest(indices: &[&PrefixIndex], hashes: &[BlockHash]) -> Vec<u32> {
    let num_replicas = indices[0].held.len();
    let words = num_replicas.div_ceil(64);
    let mut lengths = vec![0; num_replicas];
    let (mut all, mut holders): (Bits, Bits) = (vec![u64::MAX; words], vec![0; words]);
    for (length, hash) in (0..).zip(hashes) {
        holders.fill(0);
        indices.iter().for_each(|index| index.add_to(hash, &mut holders));
        let mut any = 0;
        for (word, (all, holders)) in all.iter_mut().zip(&holders).enumerate() {
            // Whoever held every block but this one ends here.
            let mut ended = *all & !holders;
            while ended != 0 {
                let replica = word * 64 + ended.trailing_zeros() as usize;
                if let Some(at) = lengths.get_mut(replica) {
                    *at = length;
                }
                ended &= ended - 1;
            }
            *all &= holders;
            any |= *all;
        }
        if any == 0 {
            return lengths;
        }
    }
    let whole = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
    for (replica, length) in (0..).zip(&mut lengths) {
        let (word, mask) = bit(replica);
        if all[word] & mask != 0 {
            *length = whole;
        }
    }
    lengths
}

impl Holders {
    /// Adds a replica to the holders of a block. Returns false if it is a holder already.
    fn add(&mut self, replica: u32, words: usize) -> bool {
        let (word, mask) = bit(replica);
        match self {
            Self::One(one) if *one == replica => false,
            Self::One(one) => {
                let mut bits = vec![0; words];
                let (other, other_mask) = bit(*one);
                bits[other] |= other_mask;
                bits[word] |= mask;
                *self = Self::Many(Box::new(bits));
                true
            }
            Self::Many(bits) => {
                let new = bits[word] & mask == 0;
                bits[word] |= mask;
                new
            }
        }
    }

    /// Removes a replica from the holders of a block. Returns whether it was one of them, and whether others are left.
    fn take(&mut self, replica: u32) -> (bool, bool) {
        let (word, mask) = bit(replica);
        match self {
            Self::One(one) => (*one == replica, *one != replica),
            Self::Many(bits) => {
                let was = bits[word] & mask != 0;
                bits[word] &= !mask;
                if bits.iter().map(|word| word.count_ones()).sum::<u32>() == 1 {
                    let word = bits.iter().position(|word| *word != 0).expect("one bit is set");
                    let last = word * 64 + bits[word].trailing_zeros() as usize;
                    *self = Self::One(u32::try_from(last).expect("a replica's number"));
                }
                (was, true)
            }
        }
    }
}
