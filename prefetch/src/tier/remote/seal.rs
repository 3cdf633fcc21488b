//! The tag of a shard: a checksum, or a MAC that only holders of a key can make.

use std::fmt;

use kvblock::BlockHash;

use crate::tier::{TierError, TierName, shard_sum};

/// Key of the MACs of a remote tier. Its text is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct MacKey([u8; 32]);

/// Why a text is no key. The error does not contain the text.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("a MAC key is 64 hexadecimal digits, not {characters} characters of which {digits} are such digits")]
#[non_exhaustive]
pub struct MacKeyError {
    /// Number of characters of the text, without white space around it.
    pub characters: usize,
    /// Number of hexadecimal digits of the text.
    pub digits: usize,
}

impl MacKey {
    /// A key of 32 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a key from 64 hexadecimal digits, with white space around them or not.
    ///
    /// # Errors
    /// [`MacKeyError`] for any other text.
    pub fn from_hex(text: &str) -> Result<Self, MacKeyError> {
        let text = text.trim();
        let digits: Vec<u8> =
            text.chars().filter_map(|c| c.to_digit(16).and_then(|digit| digit.try_into().ok())).collect();
        let mut key = [0; 32];
        if digits.len() != text.chars().count() || digits.len() != 2 * key.len() {
            return Err(MacKeyError { characters: text.chars().count(), digits: digits.len() });
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(key))
    }

    /// A name of the key that reveals nothing else about it. Engines with different keys do not see each other's blocks.
    pub(super) fn id(&self) -> String {
        let id = blake3::derive_key("pagoda 2026-11 name of a KV block key", &self.0);
        id[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey(..)")
    }
}

/// Tag of a shard.
#[derive(Debug)]
pub(super) enum Seal {
    /// [`shard_sum`].
    Sum,
    /// Keyed BLAKE3 over namespace, hash, shard number and bytes.
    Mac { key: MacKey, space: String },
}

impl Seal {
    /// Number of bytes of a tag.
    pub(super) const fn tag_bytes(&self) -> usize {
        match self {
            Self::Sum => size_of::<u64>(),
            Self::Mac { .. } => blake3::OUT_LEN,
        }
    }

    /// Appends the tag of a shard, then its bytes.
    pub(super) fn append(&self, object: &mut Vec<u8>, key: BlockHash, shard: u32, bytes: &[u8]) {
        match self {
            Self::Sum => object.extend(shard_sum(key, shard, bytes).to_le_bytes()),
            Self::Mac { key: secret, space } => {
                object.extend(mac(secret, space, key, shard, bytes).as_bytes());
            }
        }
        object.extend(bytes);
    }

    /// Checks a shard against its tag.
    pub(super) fn check(
        &self,
        tier: TierName,
        key: BlockHash,
        shard: u32,
        frame: &[u8],
    ) -> Result<(), TierError> {
        let (tag, bytes) = frame.split_at(self.tag_bytes().min(frame.len()));
        match self {
            Self::Sum => {
                let expected = tag.try_into().map_or(0, u64::from_le_bytes);
                let found = shard_sum(key, shard, bytes);
                let same = found == expected && tag.len() == self.tag_bytes();
                if same { Ok(()) } else { Err(TierError::Corrupt { tier, key, shard, found, expected }) }
            }
            Self::Mac { key: secret, space } => {
                let expected = mac(secret, space, key, shard, bytes);
                // Compared in constant time, and never told: it would let others seal these bytes.
                let same = tag.try_into().is_ok_and(|tag| expected == blake3::Hash::from_bytes(tag));
                if same { Ok(()) } else { Err(TierError::Forged { tier, key, shard }) }
            }
        }
    }
}

fn mac(secret: &MacKey, space: &str, key: BlockHash, shard: u32, bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&secret.0);
    // All but the last part have fixed lengths.
    hasher.update(space.as_bytes()).update(key.as_bytes()).update(&shard.to_le_bytes()).update(bytes);
    hasher.finalize()
}
