use crate::BlockId;

/// A copy of block `src` to block `dst`. The operation that returns it determines which devices they are on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockMove {
    /// The block read.
    pub src: BlockId,
    /// The block written.
    pub dst: BlockId,
}

/// The block copies of one step: `src -> [dst, ...]`, to be executed before the step writes any token.
///
/// A kernel runs its copies in no particular order. Within one step a freed source can become the destination
/// of a later copy, so the list is divided into waves: no copy of a wave reads or overwrites what another
/// copy of the same wave writes. There is almost always only one wave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyList {
    /// Per wave, each source with its destinations, in order of first use.
    waves: Vec<Vec<(BlockId, Vec<BlockId>)>>,
}

impl CopyList {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { waves: Vec::new() }
    }

    /// Adds a copy that sees the results of all earlier ones. O(copies of the last wave).
    pub fn push(&mut self, BlockMove { src, dst }: BlockMove) {
        let conflicts = |wave: &Vec<(BlockId, Vec<BlockId>)>| {
            wave.iter()
                .any(|(read, written)| *read == dst || written.contains(&dst) || written.contains(&src))
        };
        if self.waves.last().is_none_or(conflicts) {
            self.waves.push(Vec::new());
        }
        let wave = self.waves.last_mut().expect("a wave was just ensured");
        match wave.iter_mut().find(|(read, _)| *read == src) {
            Some((_, written)) => written.push(dst),
            None => wave.push((src, vec![dst])),
        }
    }

    /// The waves in order of execution; each maps a source to its destinations.
    #[must_use]
    pub fn waves(&self) -> &[Vec<(BlockId, Vec<BlockId>)>] {
        &self.waves
    }

    /// Whether there is nothing to copy.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.waves.is_empty()
    }
}

impl Extend<BlockMove> for CopyList {
    fn extend<T: IntoIterator<Item = BlockMove>>(&mut self, copies: T) {
        copies.into_iter().for_each(|copy| self.push(copy));
    }
}
