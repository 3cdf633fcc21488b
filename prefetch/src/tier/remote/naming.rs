//! Names of objects.

use kvblock::BlockHash;

/// How a hash becomes a name under the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Naming {
    /// `HEX`.
    Flat,
    /// `data/HEX`, or `HE/HEX` with the first characters as directory.
    Posix {
        /// Hex characters of the directory.
        dir_shard_chars: Option<u8>,
    },
}

impl Naming {
    pub(super) fn name(self, key: BlockHash) -> String {
        let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Flat => hex,
            Self::Posix { dir_shard_chars: None | Some(0) } => format!("data/{hex}"),
            Self::Posix { dir_shard_chars: Some(chars) } => {
                format!("{}/{hex}", &hex[..usize::from(chars).min(hex.len())])
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_posix_layout() {
        let key = BlockHash::from_bytes([0xab; 32]);
        let hex = "ab".repeat(32);
        let posix = |dir_shard_chars| Naming::Posix { dir_shard_chars }.name(key);
        assert_eq!(Naming::Flat.name(key), hex);
        assert_eq!(posix(None), format!("data/{hex}"));
        assert_eq!(posix(Some(3)), format!("aba/{hex}"));
        assert_eq!(posix(Some(255)), format!("{hex}/{hex}"));
    }
}
