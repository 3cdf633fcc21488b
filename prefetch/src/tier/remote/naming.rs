//! Names of objects.

use kvblock::BlockHash;

/// Translation of hashes into names of objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Naming {
    /// First part of every name.
    space: String,
    order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// `SPACE/HEX`.
    Flat,
    /// `SPACE/data/HEX`, or `SPACE/HE/HEX` with the first characters as directory.
    #[cfg(any(feature = "remote", test))]
    Posix {
        /// Number of hex characters in the names of directories; `None` for the single directory `data`.
        dir_shard_chars: Option<u8>,
    },
}

impl Naming {
    pub(super) const fn flat(space: String) -> Self {
        Self { space, order: Order::Flat }
    }

    /// The directory layout of UCM.
    #[cfg(any(feature = "remote", test))]
    pub(super) const fn posix(space: String, dir_shard_chars: Option<u8>) -> Self {
        Self { space, order: Order::Posix { dir_shard_chars } }
    }

    pub(super) fn name(&self, key: BlockHash) -> String {
        let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let space = &self.space;
        match self.order {
            Order::Flat => format!("{space}/{hex}"),
            #[cfg(any(feature = "remote", test))]
            Order::Posix { dir_shard_chars: None | Some(0) } => format!("{space}/data/{hex}"),
            #[cfg(any(feature = "remote", test))]
            Order::Posix { dir_shard_chars: Some(chars) } => {
                format!("{space}/{}/{hex}", &hex[..usize::from(chars).min(hex.len())])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_posix_layout() {
        let key = BlockHash::from_bytes([0xab; 32]);
        let hex = "ab".repeat(32);
        let posix = |dir_shard_chars| Naming::posix("of".into(), dir_shard_chars).name(key);
        assert_eq!(Naming::flat("of".into()).name(key), format!("of/{hex}"));
        assert_eq!(posix(None), format!("of/data/{hex}"));
        assert_eq!(posix(Some(3)), format!("of/aba/{hex}"));
        assert_eq!(posix(Some(255)), format!("of/{hex}/{hex}"));
    }
}
