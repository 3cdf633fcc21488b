//! Index types. There are two index spaces, which must never be mixed: [`BlockIdx`] counts the blocks of one
//! sequence, [`BlockId`] names a physical block of a pool. Only a block table turns one into the other.

use core::fmt;
use core::num::NonZeroU32;

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a raw index.
            #[must_use]
            pub const fn new(index: $inner) -> Self {
                Self(index)
            }

            /// The raw index.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

index_type!(
    /// A physical block of a pool. Block 0 of a [v1](crate) pool is the null block.
    BlockId(u32), "b"
);
index_type!(
    /// The logical position of a block in its sequence.
    BlockIdx(u32), "i"
);
index_type!(
    /// The position of a token in its sequence.
    TokenIdx(u32), "t"
);
index_type!(
    /// A physical token slot: `block * block_size + offset`.
    SlotId(u32), "s"
);
index_type!(
    /// A sequence (one sample of one request).
    SeqId(u64), "q"
);
index_type!(
    /// A group of layers that share block tables, by its place in the configuration.
    GroupId(u32), "g"
);

/// A token of the model's vocabulary.
pub type TokenId = u32;

impl BlockId {
    /// The block of a v1 pool that stands for "not needed": never written, never freed, never cached.
    pub const NULL: Self = Self(0);

    /// Whether this is the [null block](Self::NULL).
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == Self::NULL.0
    }

    /// The raw index for indexing slices.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl GroupId {
    /// The raw index for indexing slices.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Tokens per block; at least 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// A block size of `tokens`, or `None` for 0.
    #[must_use]
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// The number of tokens.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The block of a sequence that holds token `t`.
    #[must_use]
    pub const fn block_of(self, t: TokenIdx) -> BlockIdx {
        BlockIdx(t.0 / self.0.get())
    }

    /// The offset of token `t` in its block.
    #[must_use]
    pub const fn offset_of(self, t: TokenIdx) -> u32 {
        t.0 % self.0.get()
    }

    /// Number of blocks needed for `tokens` tokens, rounded up.
    #[must_use]
    pub const fn blocks_for(self, tokens: u32) -> u32 {
        tokens.div_ceil(self.0.get())
    }

    /// The largest block size that divides both `self` and `other`.
    pub(crate) fn greatest_common_divisor(self, other: Self) -> Self {
        match Self::new(self.get() % other.get()) {
            Some(rest) => other.greatest_common_divisor(rest),
            None => other,
        }
    }

    /// The smallest common multiple of two block sizes, or `u32::MAX` if it needs more than 32 bits: no sequence is
    /// that long, so no prefix length can be a multiple of both sizes.
    pub(crate) fn least_common_multiple(self, other: Self) -> Self {
        let factor = other.get() / self.greatest_common_divisor(other).get();
        Self(self.0.saturating_mul(NonZeroU32::new(factor).expect("a divisor is at most the number")))
    }

    /// The slot at `offset` of physical block `block`.
    ///
    /// # Panics
    /// When `offset` is outside the block, or the slot does not fit in 32 bits (no valid configuration has
    /// such a pool).
    #[must_use]
    pub const fn slot(self, block: BlockId, offset: u32) -> SlotId {
        assert!(offset < self.0.get());
        match block.0.checked_mul(self.0.get()) {
            Some(first) => SlotId(first + offset),
            None => panic!("slot index over 32 bits"),
        }
    }
}
