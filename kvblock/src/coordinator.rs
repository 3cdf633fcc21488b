//! Agreement of all groups on one hit length.

use crate::config::KvCacheGroup;
use crate::content::SeqContent;
use crate::error::ConfigError;
use crate::id::{BlockId, BlockSize, GroupId};
use crate::lookup::{Bounds, HitBlocks, LookupType};
use crate::pool::BlockPool;
use crate::spec::AttentionKind;

/// A cached prefix of a sequence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefixHit {
    /// Number of tokens that need not be computed.
    pub num_tokens: u32,
    /// Blocks of the prefix, `[groups][num_tokens / group block size]`; null where the group no longer needs the
    /// block. Empty if prefix caching is off.
    pub blocks: Vec<Vec<BlockId>>,
}

/// Finds the longest prefix that every group can serve (vLLM v1 hybrid coordinator).
#[derive(Clone, Debug)]
pub(crate) struct Coordinator {
    /// Lookup types, full attention first: its hit bounds the hits of all others, and it never needs a second search.
    types: Vec<LookupType>,
    num_groups: usize,
    /// Least common multiple of the block sizes; a hit is a multiple of it.
    alignment: u32,
}

impl Coordinator {
    pub(crate) fn new(groups: &[KvCacheGroup]) -> Result<Self, ConfigError> {
        let sizes = groups.iter().map(|group| group.spec.block_size);
        let alignment = sizes.reduce(BlockSize::least_common_multiple).ok_or(ConfigError::NoGroups)?.get();
        let mut types: Vec<LookupType> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let (kind, block_size) = (group.spec.kind, group.spec.block_size);
            if let AttentionKind::ChunkedLocal { .. } = kind {
                if group.eagle {
                    return Err(ConfigError::ChunkedEagle { group: index });
                }
                if block_size.get() != alignment {
                    let block_size = block_size.get();
                    return Err(ConfigError::ChunkedAlignment { group: index, block_size, alignment });
                }
            }
            let id = GroupId::new(u32::try_from(index).expect("group counts are small"));
            let same =
                |t: &&mut LookupType| (t.kind, t.block_size, t.eagle) == (kind, block_size, group.eagle);
            match types.iter_mut().find(same) {
                Some(found) => found.groups.push(id),
                None => types.push(LookupType { kind, block_size, groups: vec![id], eagle: group.eagle }),
            }
        }
        types.sort_by_key(|t| !t.kind.is_full());
        Ok(Self { types, num_groups: groups.len(), alignment })
    }

    /// The longest hit of at most `max_length` tokens. O(types² · blocks) in the worst case, O(blocks) for
    /// one type.
    ///
    /// A type may only shrink the candidate; whenever one does, the others are asked again, until all agree.
    pub(crate) fn longest_hit(
        &self,
        content: SeqContent<'_>,
        max_length: u32,
        pool: &BlockPool,
    ) -> PrefixHit {
        let mut found: Vec<Option<HitBlocks>> = vec![None; self.types.len()];
        let mut dropped = vec![false; self.types.len()];
        let mut candidate = max_length;
        loop {
            let mut length = candidate;
            for (index, of) in self.types.iter().enumerate() {
                let size = of.block_size.get();
                if of.kind.is_full() && found[index].is_some() {
                    length = length / size * size;
                    continue;
                }
                let drop_last = of.eagle && !dropped[index];
                let reach = if drop_last { length.saturating_add(size).min(max_length) } else { length };
                let bounds = Bounds { max_length: reach, alignment: self.alignment, drop_last };
                let blocks = of.longest_hit(content, bounds, pool);
                let hit = u32::try_from(blocks[0].len()).expect("a hit has at most u32::MAX blocks") * size;
                if drop_last {
                    dropped[index] = true;
                } else if hit < length {
                    dropped.fill(false);
                }
                length = length.min(hit);
                found[index] = Some(blocks);
            }
            if length >= candidate {
                break;
            }
            candidate = length;
            if self.types.len() == 1 || self.types.len() == 2 && self.types[0].kind.is_full() {
                break; // The second type searched within the first one's hit: one pass agrees.
            }
        }
        self.collect(found, candidate)
    }

    fn collect(&self, found: Vec<Option<HitBlocks>>, num_tokens: u32) -> PrefixHit {
        let mut blocks = vec![Vec::new(); self.num_groups];
        for (of, lists) in self.types.iter().zip(found) {
            let expected = (num_tokens / of.block_size.get()) as usize;
            for (group, mut list) in of.groups.iter().zip(lists.expect("every type was searched")) {
                list.truncate(expected);
                assert_eq!(list.len(), expected, "{group:?} serves {} of {expected} hit blocks", list.len());
                blocks[group.index()] = list;
            }
        }
        PrefixHit { num_tokens, blocks }
    }
}
