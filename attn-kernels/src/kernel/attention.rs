//! What all attention kernels can be asked for.

use super::KvShape;
use crate::{Access, Variant};

/// What a variant of an attention kernel computes; the default is dense causal attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attention {
    /// Which keys are attended, and in which order.
    pub context: Context,
}

/// Which keys are attended, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Context {
    /// All, by position.
    #[default]
    Full,
    /// Those of listed blocks of this many tokens: one more binding, the last, of lists `[count, blocks ascending..]`.
    Blocks(u32),
}

impl Attention {
    /// Attention to listed blocks of `select_block` tokens.
    #[must_use]
    pub fn blocks(select_block: u32) -> Self {
        Self { context: Context::Blocks(select_block) }
    }

    /// Fills the slots of `variant`, which loads `run` keys at once, and sets its bindings: its kernel's, or all of
    /// `bindings`, of which the last is that of the lists.
    ///
    /// # Panics
    /// When a selection block is not whole blocks of the cache and whole loads.
    pub(super) fn specialise(
        &self,
        variant: Variant,
        shape: &KvShape,
        run: u32,
        bindings: &'static [Access],
    ) -> Variant {
        match self.context {
            Context::Full => variant.module("context", "context_full"),
            Context::Blocks(tokens) => {
                let unit = shape.block_size.max(run);
                assert!(
                    tokens > 0 && tokens.is_multiple_of(unit),
                    "selection blocks of {tokens} tokens are not a multiple of {unit}"
                );
                variant.module("context", "context_blocks").size("SELECT_BLOCK", tokens).bindings(bindings)
            }
        }
    }
}
