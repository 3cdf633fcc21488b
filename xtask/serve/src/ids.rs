//! Ids of replies and of their parts.

use rand::random;

/// An id that no other has.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{:024x}", random::<u128>() >> 32)
}
