//! Options that all attention kernels share.

pub use kvblock::Reach;

use super::error::Launch;
use super::{KvDtype, KvLayout, KvShape, LaunchError};
use crate::Variant;
use crate::declare::{FLOATS, Sizes, TYPES};
use crate::slot::{self, Flag, OneOf};

/// Options of a variant of an attention kernel; the default is dense causal attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attention {
    /// Keys that are attended, and their order.
    pub context: Context,
    /// Units that block tables name.
    pub pages: Pages,
    /// Keys that a row of prefill sees, given its position. Rows of decode name their first key themselves:
    /// [`Reach::first_key`].
    pub mask: Reach,
    /// Changes of scores before the softmax.
    pub logit: Logit,
    /// Whether heads have attention sinks. If so, `paged_reduce` always follows decode and has one more binding,
    /// `sinks`, as its last, and `apply_sinks` follows prefill.
    pub sinks: bool,
    /// Whether prefill skips keys whose scores are far below a row's largest score so far (BLASST). It skips 8 keys
    /// of a row at a time, or with matrices 16 keys of 32 rows. `log_skip` of the parameters says how far below.
    pub skip: bool,
}

/// Keys that are attended, and their order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Context {
    /// All keys, in the order of positions.
    #[default]
    Full,
    /// Keys of listed blocks, which have this many tokens. The kernel has one more binding, as its last, for the
    /// lists `[count, blocks ascending..]`.
    Blocks(u32),
    /// Listed single tokens, with lists as for blocks of one token (DSA); for `paged_decode` and `mla_decode`.
    Tokens,
}

/// Units that the block tables of `paged_decode`, `paged_prefill` and their forms with cooperative matrices name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pages {
    /// Blocks that hold all KV heads.
    #[default]
    Shared,
    /// Pages of single KV heads, with tables `[entries, num_kv_heads]`, as [`residency`](super::residency) writes
    /// them if each head has pages of its own on the device.
    OfHeads,
}

/// Changes of scores before the softmax.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Logit {
    /// Scores are not changed.
    #[default]
    Plain,
    /// Softcapped scores, `c * tanh(score / c)`, with `softcap` of the parameters as c.
    Softcap,
    /// ALiBi: `score - slope * (p - k)` for a query at position p and a key at position k. The kernel has one more
    /// binding, as its last, with slopes `[num_heads]` f32. If there are lists, their binding has the slopes before
    /// the lists, in `paged_reduce` too.
    Alibi,
}

/// Whether keys come from lists.
pub(crate) const CONTEXT: OneOf<bool> =
    OneOf::new("context", &[(false, "context_full"), (true, "context_blocks")]);
/// Whether lists follow the slopes of heads, in one buffer.
pub(crate) const LISTS: OneOf<bool> =
    OneOf::new("lists", &[(false, "lists_first"), (true, "lists_after_slopes")]);
/// Change of scores before the softmax, and whether keys come from lists.
pub(crate) const LOGIT: OneOf<(Logit, bool)> = OneOf::new(
    "logit",
    &[
        ((Logit::Plain, false), "logit_plain"),
        ((Logit::Plain, true), "logit_plain"),
        ((Logit::Softcap, false), "logit_softcap"),
        ((Logit::Softcap, true), "logit_softcap"),
        ((Logit::Alibi, false), "logit_alibi"),
        ((Logit::Alibi, true), "logit_alibi_listed"),
    ],
);
/// Kinds of masks, without their numbers of tokens.
pub(crate) const MASK: OneOf<Reach> = OneOf::new(
    "mask",
    &[(Reach::Full, "mask_causal"), (Reach::Window(0), "mask_window"), (Reach::Chunk(0), "mask_chunk")],
);
/// Units of block tables that a variant may have.
pub(crate) const UNITS: OneOf<Pages> =
    OneOf::new("pages", &[(Pages::Shared, "pages_shared"), (Pages::OfHeads, "pages_heads")]);
/// Units of block tables, for kernels that load table entries ahead.
pub(crate) const ENTRIES: OneOf<Pages> =
    OneOf::new("pages", &[(Pages::Shared, "entries_shared"), (Pages::OfHeads, "entries_heads")]);
/// Whether keys of little weight are skipped.
pub(crate) const SKIP: OneOf<bool> = OneOf::new("skip", &[(false, "skip_none"), (true, "skip_rows")]);
/// Whether keys of little weight are skipped, as a number.
const SKIPS: Flag = Flag("SKIPS");

/// Returns the mask without its number of tokens.
fn kind(mask: Reach) -> Reach {
    match mask {
        Reach::Full => Reach::Full,
        Reach::Window(_) => Reach::Window(0),
        Reach::Chunk(_) => Reach::Chunk(0),
    }
}

impl Attention {
    /// Attention to listed blocks of `select_block` tokens.
    #[must_use]
    pub fn blocks(select_block: u32) -> Self {
        Self { context: Context::Blocks(select_block), ..Self::default() }
    }

    /// Lists options of variants, each with the beginning of the variants' names and the cache types for which they
    /// are listed.
    pub(super) fn listed(sizes: &Sizes) -> [(&'static str, Self, &'static [KvDtype]); 10] {
        let of = |mask, logit| Self { mask, logit, ..Self::default() };
        let blocks = Self::blocks(sizes.select(64));
        let pages = Self { pages: Pages::OfHeads, ..blocks };
        let f16 = &FLOATS[..1];
        [
            ("", Self::default(), &FLOATS),
            ("blocks-", blocks, &FLOATS),
            ("pages-", pages, f16),
            ("window-", of(Reach::Window(128), Logit::Plain), f16),
            ("chunk-", of(Reach::Chunk(8192), Logit::Plain), f16),
            ("softcap-", of(Reach::Full, Logit::Softcap), f16),
            ("alibi-", of(Reach::Full, Logit::Alibi), f16),
            ("alibi-blocks-", Self { logit: Logit::Alibi, ..blocks }, f16),
            ("sinks-", Self { sinks: true, ..Self::default() }, f16),
            ("skip-", Self { skip: true, ..Self::default() }, f16),
        ]
    }

    /// Lists names, caches and options of variants of decode: those of [`listed`](Self::listed), and others for
    /// codes, listed tokens and the v0 layout.
    pub(super) fn listed_decode(sizes: &Sizes) -> Vec<(String, KvShape, Self)> {
        let mut all = Vec::new();
        for (name, attention, types) in Self::listed(sizes) {
            let of = |dtype: &KvDtype| (format!("{name}{}", dtype.name()), sizes.cache(*dtype), attention);
            all.extend(types.iter().map(of));
        }
        let tokens = Self { context: Context::Tokens, ..Self::default() };
        for dtype in TYPES {
            let (name, shape) = (dtype.name(), sizes.cache(dtype));
            if dtype.is_code() {
                all.push((name.into(), shape, Self::default()));
            }
            all.push((format!("tokens-{name}"), shape, tokens));
            all.push((format!("v0-{name}"), KvShape { layout: KvLayout::V0, ..shape }, Self::default()));
        }
        all
    }

    /// Checks the options for a cache of `shape` and a kernel that loads `run` keys at once: 8 in `paged_prefill`, 16
    /// in its form with matrices, 1 in others.
    ///
    /// # Errors
    /// Selection blocks that are not whole blocks of the cache and whole loads, tokens where loads are of several, and a window
    /// or chunk without tokens.
    pub fn validate(&self, shape: &KvShape, run: u32) -> Result<(), LaunchError> {
        let launch = Launch("attention");
        if self.mask != Reach::Full {
            launch.not_zero("tokens of the window or chunk", self.mask.tokens())?;
        }
        match self.context {
            Context::Blocks(tokens) => launch.whole_pages(tokens, shape.block_size.max(run)),
            Context::Tokens => launch.whole_pages(1, run),
            Context::Full => Ok(()),
        }
    }

    /// Fills the slot of the context of `variant`, which loads `run` keys at once.
    ///
    /// # Panics
    /// When a selection block is not whole blocks of the cache and whole loads, or a token is not a whole load.
    pub(super) fn order(&self, variant: Variant, shape: &KvShape, run: u32) -> Variant {
        match self.context {
            Context::Full => variant.set(CONTEXT, false),
            Context::Blocks(tokens) => {
                let unit = shape.block_size.max(run);
                assert!(
                    tokens > 0 && tokens.is_multiple_of(unit),
                    "selection blocks of {tokens} tokens are not a multiple of {unit}"
                );
                self.lists(variant, tokens)
            }
            Context::Tokens => {
                assert_eq!(run, 1, "listed tokens for a kernel that loads several keys at once");
                self.lists(variant, 1)
            }
        }
    }

    fn lists(&self, variant: Variant, tokens: u32) -> Variant {
        let variant = variant.set(CONTEXT, true).set(slot::SELECT_BLOCK, tokens);
        // Nine storage buffers would be one too many.
        if self.logit == Logit::Alibi { variant.set(LISTS, true) } else { variant }
    }

    /// Sets the import slots for the context and the logits, and adds a binding: `selected` if there are lists, else
    /// `slopes` if there are slopes, else none. In `selected`, slopes of ALiBi precede the lists.
    ///
    /// # Panics
    /// As [`Self::order`].
    pub(super) fn specialise(&self, variant: Variant, shape: &KvShape, run: u32) -> Variant {
        let (listed, alibi) = (self.context != Context::Full, self.logit == Logit::Alibi);
        let variant = self.order(variant, shape, run).set(LOGIT, (self.logit, listed));
        match (listed, alibi) {
            (false, false) => variant,
            (false, true) => variant.with("slopes"),
            // Slopes lie before the lists, in one buffer.
            (true, _) => variant.with("selected"),
        }
    }

    /// Fills the slots of kernels that skip keys.
    pub(super) fn skips(&self, variant: Variant) -> Variant {
        variant.set(SKIPS, self.skip).set(SKIP, self.skip)
    }

    /// Fills the slot of pages of a kernel that loads table entries ahead.
    pub(super) fn paged_ahead(&self, variant: Variant) -> Variant {
        variant.set(ENTRIES, self.pages)
    }

    /// Fills the slot of pages.
    pub(super) fn paged(&self, variant: Variant) -> Variant {
        variant.set(UNITS, self.pages)
    }

    /// Fills the slot of the mask.
    ///
    /// # Panics
    /// When a window or chunk has no tokens.
    pub(super) fn mask(&self, variant: Variant) -> Variant {
        assert!(self.mask == Reach::Full || self.mask.tokens() > 0, "{:?} has no keys", self.mask);
        variant.set(MASK, kind(self.mask))
    }
}
