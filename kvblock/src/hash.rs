//! Content hashes of full blocks: `H_i = f(H_{i-1}, tokens of block i, extra keys of block i)`.
//!
//! Through the chain, one hash identifies a whole prefix, so a lookup compares one value per block (vLLM v1,
//! automatic prefix caching).

use sha2::{Digest, Sha256};

use crate::extra_keys::ExtraKeys;
use crate::id::{BlockSize, GroupId, TokenId};

/// Hash of one full block, chained over every block before it and over the extra keys of each.
///
/// Equal hashes mean equal tokens at equal positions under equal keys, up to collisions of the hash function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// Wraps 32 bytes; a shorter hash function fills the tail with zeros.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the hash.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl core::fmt::Debug for BlockHash {
    /// The first four bytes in hex: enough to tell the blocks of a trace apart.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "h{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// Content of a block in one cache group. The same tokens take one physical block in each group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CacheKey {
    /// Chained hash of the block's tokens.
    pub hash: BlockHash,
    /// The group whose layers the block holds.
    pub group: GroupId,
}

/// The hash function of a [`HashChain`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// SHA-256, the default: for caches shared between tenants, since no attacker can construct a colliding prompt.
    #[default]
    Sha256,
    /// XXH3 with 128 bits: several times faster, but a collision can be constructed on purpose.
    Xxh3,
}

impl HashAlgorithm {
    /// Hashes one message. [`Xxh3`](Self::Xxh3) fills the last 16 bytes with zeros.
    #[must_use]
    pub fn hash(self, message: &[u8]) -> BlockHash {
        match self {
            Self::Sha256 => BlockHash(Sha256::digest(message).into()),
            Self::Xxh3 => {
                let mut bytes = [0; 32];
                bytes[..16].copy_from_slice(&xxhash_rust::xxh3::xxh3_128(message).to_be_bytes());
                BlockHash(bytes)
            }
        }
    }
}

/// Hash function of blocks; equal hashers give equal hashes in every process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHasher {
    algorithm: HashAlgorithm,
    root: BlockHash,
    block_size: BlockSize,
}

impl BlockHasher {
    /// A hasher whose chains start at `f(seed)`. A secret seed (random bytes) hides which prompts are cached
    /// from anyone who sees only hashes; a fixed seed lets processes share a cache.
    #[must_use]
    pub fn new(algorithm: HashAlgorithm, seed: &[u8], block_size: BlockSize) -> Self {
        Self { algorithm, root: algorithm.hash(seed), block_size }
    }

    /// The parent of every first block.
    #[must_use]
    pub const fn root(&self) -> BlockHash {
        self.root
    }

    /// Number of tokens that a hash covers. Every group's block size is a multiple of it.
    #[must_use]
    pub const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Hashes the block that follows `parent`. `extra` is the encoding that [`ExtraKeys::encode_block`]
    /// appends.
    ///
    /// The message is `parent ‖ token count ‖ tokens ‖ extra`, integers little endian. Fixed widths and the
    /// token count make the encoding injective.
    #[must_use]
    pub fn hash_block(&self, parent: &BlockHash, tokens: &[TokenId], extra: &[u8]) -> BlockHash {
        let mut message = Vec::with_capacity(36 + 4 * tokens.len() + extra.len());
        message.extend_from_slice(parent.as_bytes());
        let count = u32::try_from(tokens.len()).expect("a block holds at most u32::MAX tokens");
        message.extend_from_slice(&count.to_le_bytes());
        for token in tokens {
            message.extend_from_slice(&token.to_le_bytes());
        }
        message.extend_from_slice(extra);
        self.algorithm.hash(&message)
    }
}

/// The growing list of block hashes of one sequence.
///
/// ```
/// use kvblock::{BlockHasher, BlockSize, ExtraKeys, HashAlgorithm, HashChain};
///
/// let hasher = BlockHasher::new(HashAlgorithm::default(), b"", BlockSize::new(2).unwrap());
/// let chain = |tokens: &[u32]| {
///     let mut chain = HashChain::new(hasher, ExtraKeys::default());
///     chain.extend(tokens);
///     chain
/// };
/// let (a, b) = (chain(&[1, 2, 3, 4, 5]), chain(&[1, 2, 9, 4]));
/// assert_eq!(a.hashes().len(), 2); // Token 5 fills no block.
/// assert_eq!(a.hashes()[0], b.hashes()[0]);
/// assert_ne!(a.hashes()[1], b.hashes()[1]);
/// ```
#[derive(Clone, Debug)]
pub struct HashChain {
    hasher: BlockHasher,
    extra: ExtraKeys,
    hashes: Vec<BlockHash>,
}

impl HashChain {
    /// An empty chain of a sequence with these extra keys.
    #[must_use]
    pub const fn new(hasher: BlockHasher, extra: ExtraKeys) -> Self {
        Self { hasher, extra, hashes: Vec::new() }
    }

    /// Hashes the blocks of `tokens` that became full since the last call. `tokens` is the whole sequence
    /// from position 0 and may only grow.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        let size = self.hasher.block_size.get() as usize;
        let mut extra = Vec::new();
        for (index, block) in tokens.chunks_exact(size).enumerate().skip(self.hashes.len()) {
            extra.clear();
            self.extra.encode_block(index * size, size, &mut extra);
            let parent = self.hashes.last().copied().unwrap_or(self.hasher.root);
            self.hashes.push(self.hasher.hash_block(&parent, block, &extra));
        }
    }

    /// One hash for each full block.
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// The keys that every hash of this chain depends on.
    #[must_use]
    pub const fn extra_keys(&self) -> &ExtraKeys {
        &self.extra
    }
}

/// The hash of block `index`, which spans one or more hash blocks: hashes are chained, so the last one
/// identifies them all.
pub(crate) fn block_hash(
    hashes: &[BlockHash],
    index: usize,
    block: BlockSize,
    hash_block: BlockSize,
) -> BlockHash {
    let ratio = (block.get() / hash_block.get()) as usize;
    hashes[(index + 1) * ratio - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extra_keys::{MultimodalItem, PromptEmbeds};

    const SIZE: BlockSize = BlockSize::new(4).unwrap();

    fn chain(algorithm: HashAlgorithm, extra: ExtraKeys, tokens: &[TokenId]) -> Vec<BlockHash> {
        let mut chain = HashChain::new(BlockHasher::new(algorithm, b"seed", SIZE), extra);
        chain.extend(tokens);
        chain.hashes().to_vec()
    }

    #[test]
    fn only_full_blocks_are_hashed_and_growth_equals_one_pass() {
        let tokens: Vec<TokenId> = (0..15).collect();
        for algorithm in [HashAlgorithm::Sha256, HashAlgorithm::Xxh3] {
            let whole = chain(algorithm, ExtraKeys::default(), &tokens);
            assert_eq!(whole.len(), 3);
            let mut grown = HashChain::new(BlockHasher::new(algorithm, b"seed", SIZE), ExtraKeys::default());
            for end in 0..=tokens.len() {
                grown.extend(&tokens[..end]);
                assert_eq!(grown.hashes(), &whole[..end / 4]);
            }
        }
    }

    #[test]
    fn sha256_message_is_the_documented_one() {
        let root = Sha256::digest(b"seed");
        let mut message = root.to_vec();
        message.extend([4, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 1, 0, 0]);
        let expected: [u8; 32] = Sha256::digest(&message).into();
        let got = chain(HashAlgorithm::Sha256, ExtraKeys::default(), &[7, 8, 9, 256]);
        assert_eq!(got[0].as_bytes(), &expected);
    }

    #[test]
    fn a_change_reaches_its_block_and_all_later_ones_only() {
        let tokens: Vec<TokenId> = (0..16).collect();
        let base = chain(HashAlgorithm::Sha256, ExtraKeys::default(), &tokens);
        let first_changed = |extra: ExtraKeys, tokens: &[TokenId]| {
            let other = chain(HashAlgorithm::Sha256, extra, tokens);
            let first = base.iter().zip(&other).position(|(a, b)| a != b);
            let agree_later = base.iter().zip(&other).skip(first.unwrap_or(0)).any(|(a, b)| a == b);
            assert!(first.is_none() || !agree_later, "a later block fell back into the old chain");
            first
        };
        let mut edited = tokens.clone();
        edited[9] = 99;
        let image = |start| MultimodalItem { identifier: "img".into(), start, len: 3 };
        let keys = ExtraKeys::default;
        assert_eq!(first_changed(keys(), &tokens), None);
        assert_eq!(first_changed(keys(), &edited), Some(2));
        assert_eq!(first_changed(ExtraKeys { adapter: Some("a".into()), ..keys() }, &tokens), Some(0));
        assert_eq!(first_changed(ExtraKeys { salt: Some("s".into()), ..keys() }, &tokens), Some(0));
        assert_eq!(first_changed(ExtraKeys { multimodal: vec![image(6)], ..keys() }, &tokens), Some(1));
        assert_eq!(first_changed(ExtraKeys { multimodal: vec![image(12)], ..keys() }, &tokens), Some(3));
        let embeds = PromptEmbeds { bytes_per_token: 2, bytes: vec![1; 12] };
        assert_eq!(first_changed(ExtraKeys { prompt_embeds: Some(embeds), ..keys() }, &tokens), Some(0));
    }

    #[test]
    fn an_item_is_placed_relative_to_its_block() {
        let tokens = [0; 8];
        let at = |start| {
            let item = MultimodalItem { identifier: "img".into(), start, len: 4 };
            chain(HashAlgorithm::Xxh3, ExtraKeys { multimodal: vec![item], ..ExtraKeys::default() }, &tokens)
        };
        // Same blocks overlapped, other offset: both hashes must differ.
        assert!(at(2).iter().zip(at(3)).all(|(a, b)| *a != b));
    }
}
