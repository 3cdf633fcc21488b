//! Content hashes of full blocks.

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
