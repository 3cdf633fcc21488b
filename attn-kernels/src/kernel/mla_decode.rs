//! Absorbed multi-head latent attention of query rows over one or two caches.

use super::attention::{Attention, Context};
use super::error::Launch;
use super::paged_reduce::PagedReduceParams;
use super::{KvDtype, KvLayout, KvShape, LaunchError, Stored, heads_together, paged_decode, paged_reduce};
use crate::Variant;
use crate::declare::{Listed, Sizes, TYPES};
use crate::profile::{DeviceProfile, Registers};
use crate::rows::{DecodeRow, KvWord, PhysicalBlock};
use crate::slot::{self, Number, OneOf};

kernel! {
    /// The kernel; [`MlaDecodeBuffers`] lists its bindings.
    "mla_decode"(MlaDecodeParams, MlaDecodeBuffers): Attention,
    grid: |params, variant| {
        [params.partitions(), params.num_heads / variant.number(slot::HEADS), params.rows]
    },
    listed: listed,
    variants: "f16, f32, fp8, int8; all keys, listed blocks or listed tokens; two caches by lists of slots; by *registers*",
    bytes: "`2 * L * W` per row and 16 heads, 8 with few registers",
    cases: crate::self_test::mla_decode::cases,
}

/// Lists variants for the 128 heads of DeepSeek V3 over one and two caches, and for the latents of V4 over two
/// caches. Latents are smaller in proportion if heads have fewer than 128 elements.
fn listed(sizes: &Sizes) -> Listed {
    Registers::listed(|registers| {
        let mut all = Listed::new();
        for dtype in TYPES {
            let shape = LatentShape::listed(sizes, dtype);
            let two = LatentShape { rope: 0, ..shape };
            let tokens = Attention { context: Context::Tokens, ..Attention::default() };
            let name = dtype.name();
            all.push((name.into(), variant(&shape, 128, &Attention::default(), registers)));
            all.push((format!("tokens-{name}"), variant(&shape, 128, &tokens, registers)));
            all.push((format!("two-{name}"), variant_of_two(&two, 128, registers)));
        }
        let v4 = LatentShape::listed_v4(sizes);
        all.push(("two-fp8-bf16".into(), variant_of_two(&v4, 64, registers)));
        all
    })
}

params! {
    /// Uniform parameters.
    pub struct MlaDecodeParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of f32 from one query row to the next, a multiple of 4.
        pub q_stride: u32,
        /// Maximum number of partitions of a row: see [`partitions`](super::paged_decode::partitions).
        pub max_partitions: u32,
        /// Number of keys of a partition, a multiple of [`PARTITION`].
        pub partition_size: u32,
        /// Flag: 1 if `paged_reduce` follows; 0 if there is one partition and no sinks, so that `partial` is the output.
        pub reduced: u32,
        /// Factor on scores, usually `1 / sqrt(d)` with the head size d before absorption.
        pub scale: f32,
        /// Number of entries from one list of selected blocks, or of slots of the window, to the next.
        pub list_stride: u32,
        /// Index of the dispatch's first row in `rows`, and of its first list among those of blocks, tokens or slots.
        pub first_row: u32,
        /// Number of entries from one list of compressed slots to the next.
        pub compressed_stride: u32,
        /// First key of the dispatch in the order of attention, a multiple of `partition_size`; 0 if the dispatch
        /// attends all keys.
        pub first_key: u32,
        /// Number of keys of the dispatch, also a multiple of `partition_size`, or `u32::MAX` for all.
        pub num_keys: u32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `mla_decode`.
    pub struct MlaDecodeBuffers(MlaDecodeParams) {
        /// Queries, rows of `q_stride` f32, `[num_heads, latent + rope]`: the part that has passed through the key
        /// projection, then the rope part.
        read q: f32,
        /// Cache of latents, rows of `latent + rope` elements. A whole row is the key, and its first `latent`
        /// elements are the value.
        read latents: KvWord,
        /// Block tables, in variants over one cache.
        read tables: PhysicalBlock = None,
        /// Second cache, with compressed entries, in variants over two caches.
        read compressed: KvWord = None,
        /// Rows, `[first_row + n]`; in variants over two caches, they are [`SlotRow`](crate::rows::SlotRow)s.
        read rows: DecodeRow,
        /// Outputs of partitions, `[n, num_heads, max_partitions, latent]`, unnormalised where a reduction follows.
        write partial: f32,
        /// (max, sum) of each partition, `[n, num_heads, max_partitions]`.
        write stats: [f32; 2],
        /// Lists of selected blocks or tokens: count, then ascending blocks or tokens.
        read selected: u32 = None,
        /// Slots of the first cache, in variants over two caches: a list of `list_stride` entries for each row from
        /// `first_row` on.
        read window_slots: u32 = None,
        /// Slots of the second cache, in variants over two caches: a list of `compressed_stride` entries for each row
        /// from `first_row` on.
        read compressed_slots: u32 = None,
    }
}

impl MlaDecodeParams {
    /// Number of partitions of a row that the dispatch attends.
    pub(super) fn partitions(&self) -> u32 {
        paged_decode::dispatched(self.max_partitions, self.num_keys, self.partition_size)
    }
}

impl Default for MlaDecodeParams {
    /// Parameters with one partition of [`PARTITION`] keys that no reduction follows, and no lists. Heads, stride and
    /// scale are to be set.
    fn default() -> Self {
        Self {
            max_partitions: 1,
            partition_size: PARTITION,
            num_keys: u32::MAX,
            ..bytemuck::Zeroable::zeroed()
        }
    }
}

impl From<&MlaDecodeParams> for PagedReduceParams {
    /// Parameters of the `paged_reduce` that follows this `mla_decode`; all heads share the latents.
    fn from(decode: &MlaDecodeParams) -> Self {
        let MlaDecodeParams {
            num_heads, max_partitions, partition_size, list_stride, first_row, rows, ..
        } = *decode;
        Self { num_heads, num_kv_heads: 1, max_partitions, list_stride, first_row, partition_size, rows }
    }
}

/// Shape of a cache of latents `[num_blocks, block_size, latent + rope]`. After the 8-bit codes of a token come two
/// f32 scales, of the latent and of the rope part, or the scales that `plain` describes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LatentShape {
    /// Number of elements of a value, which are the first elements of its key: a multiple of 8 up to 512.
    pub latent: u32,
    /// Number of elements of a key after the latent, a multiple of 8; may be 0.
    pub rope: u32,
    /// Number of tokens per block.
    pub block_size: u32,
    /// Element type.
    pub dtype: KvDtype,
    /// Number of elements in bf16 at the end of a latent in fp8, as DeepSeek V4 publishes it: a multiple of 8, less
    /// than `latent`, without a rope part. Each 64 codes before them have a scale that is a power of two, of one
    /// byte, and scales take 8 bytes. 0 for codes with f32 scales.
    pub plain: u32,
}

impl LatentShape {
    /// Number of elements per token.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.latent + self.rope
    }

    /// Number of bytes of a token, with the 8 bytes that scales take.
    #[must_use]
    pub fn token_bytes(&self) -> usize {
        let scales = if self.dtype.is_code() { 8 } else { 0 };
        // An element in bf16 takes one byte more than a code.
        self.width() as usize * self.dtype.bytes() as usize + self.plain as usize + scales
    }

    /// Size of one block, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_size as usize * self.token_bytes()
    }

    /// Returns the shape that `paged_reduce` takes for the cache.
    #[must_use]
    pub fn values(&self) -> KvShape {
        let Self { latent, block_size, dtype, .. } = *self;
        KvShape { num_kv_heads: 1, head_dim: latent, block_size, dtype, layout: KvLayout::Native }
    }

    /// Checks the requirements of all kernels of latents.
    ///
    /// # Errors
    /// Latents that are not multiples of 8 up to 512, rope parts that are not up to 64, block sizes that are not powers of
    /// two from 4 to 256; elements in bf16 that are not a multiple of 8 below `latent`, or are combined with a rope part or
    /// another type.
    pub fn validate(&self) -> Result<(), LaunchError> {
        let launch = Launch("cache of latents");
        let Self { latent, rope, block_size, plain, .. } = *self;
        launch.not_zero("latent", latent)?;
        if plain > 0 {
            let most = if self.dtype == KvDtype::Fp8 { latent - 1 } else { 0 };
            launch.at_most("part in bf16", plain.into(), most.into())?;
            launch.multiple("part in bf16", plain, 8)?;
            launch.at_most("rope part beside one in bf16", rope.into(), 0)?;
        }
        for (what, size, limit) in [("latent", latent, 512), ("rope part", rope, 64)] {
            launch.multiple(what, size, 8)?;
            launch.at_most(what, size.into(), limit)?;
        }
        launch.power_of_two("block size", block_size)?;
        launch.multiple("block size", block_size, 4)?;
        launch.at_most("block size", block_size.into(), 256)
    }

    /// Latents of DeepSeek V3 for heads of 128 elements, scaled in proportion for other heads.
    pub(super) fn listed(sizes: &Sizes, dtype: KvDtype) -> Self {
        let head_dim = sizes.head_dim;
        Self { latent: 4 * head_dim, rope: head_dim / 2, block_size: 64, dtype, plain: 0 }
    }

    /// Latents of DeepSeek V4, scaled in proportion to the heads.
    pub(super) fn listed_v4(sizes: &Sizes) -> Self {
        Self { rope: 0, plain: sizes.head_dim / 2, ..Self::listed(sizes, KvDtype::Fp8) }
    }

    /// Type of the elements.
    pub(super) fn element(&self) -> Element {
        if self.plain > 0 { Element::V4 } else { Element::Of(self.dtype) }
    }

    /// Layout and element type of the cache.
    pub(super) const fn stored(&self) -> Stored {
        (KvLayout::Native, self.dtype)
    }

    /// Completes a variant of this cache with the size of the part in bf16, if there is one.
    pub(super) fn sized(&self, variant: Variant) -> Variant {
        if self.plain > 0 { variant.set(PLAIN, self.plain) } else { variant }
    }

    /// Asserts the requirements of kernels.
    ///
    /// # Panics
    ///
    /// If [`Self::validate`] refuses the shape.
    pub(super) fn check(&self) {
        self.validate().unwrap_or_else(|error| panic!("{error}: unchecked"));
    }
}

/// Type of the elements of a cache of latents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Element {
    /// One type for all elements.
    Of(KvDtype),
    /// Codes of fp8 and a part in bf16, as in DeepSeek V4.
    V4,
}

impl Element {}

/// Type of the elements of the cache.
pub(crate) const ELEMENT: OneOf<Element> = OneOf::new(
    "element",
    &[
        (Element::Of(KvDtype::F16), "latent_f16"),
        (Element::Of(KvDtype::F32), "latent_f32"),
        (Element::Of(KvDtype::Fp8), "latent_fp8"),
        (Element::Of(KvDtype::Int8), "latent_int8"),
        (Element::V4, "latent_v4"),
    ],
);
/// Whether there are two caches.
pub(crate) const TWO: OneOf<bool> = OneOf::new("latents", &[(false, "latents_paged"), (true, "latents_two")]);
/// Number of elements in bf16.
pub(crate) const PLAIN: Number = Number("PLAIN");
/// Number of words of a key that a lane owns.
pub(super) const KEY_WORDS: Number = Number("KEY_WORDS");
/// Number of words of a value that a lane owns.
pub(super) const VALUE_WORDS: Number = Number("VALUE_WORDS");
/// Number of groups of four elements of a word.
const WORD_QUADS: Number = Number("WORD_QUADS");
/// Number of parts in which a score is summed.
const PIECES: Number = Number("PIECES");
/// Number of latents that a lane loads at once.
const LATENTS_AHEAD: Number = Number("LATENTS_AHEAD");
/// Whether outputs are rescaled at every step.
const STEADY: Number = Number("STEADY");

/// Number of keys whose slots a workgroup knows at a time, and minimum number of keys of a partition.
pub const PARTITION: u32 = 256;

/// Returns the variant of `paged_reduce` that merges the partitions on a device.
#[must_use]
pub fn reduce_variant(profile: &DeviceProfile, shape: &LatentShape, attention: &Attention) -> Variant {
    paged_reduce::best(profile, &shape.values(), attention)
}

/// Number of query heads that share one read of the cache, for lanes with `registers`.
#[must_use]
pub fn heads_per_group(num_heads: u32, registers: Registers) -> u32 {
    heads_together(num_heads, Division::of(registers).heads)
}

/// Division of the latents that a workgroup reads at a time among its lanes.
struct Division {
    /// Maximum number of query heads of a workgroup.
    heads: u32,
    /// Number of channels of a latent that a lane owns.
    channels: u32,
    /// Number of latents that a lane loads at once: in types of at most 16 bits, and in f32, which take twice the
    /// registers.
    ahead: [u32; 2],
    /// Approximate number of parts of a score's sum that a lane adds up: of plain types, and of codes.
    piece: [u32; 2],
    /// Whether outputs are rescaled at every step.
    steady: u32,
}

impl Division {
    /// Returns a division whose values fit into the registers of a lane. Queries and outputs of four heads of 16
    /// channels take 128 registers.
    const fn of(registers: Registers) -> Self {
        match registers {
            Registers::Few => Self { heads: 8, channels: 8, ahead: [2, 1], piece: [16, 32], steady: 1 },
            Registers::Many => Self { heads: 16, channels: 16, ahead: [3, 2], piece: [16; 2], steady: 0 },
        }
    }
}

/// Returns the variant over one cache of `shape` and `num_heads` query heads, for lanes with `registers`. Of
/// `attention`, only the context matters; heads share their lists. Baseline and subgroup level have the same text.
///
/// # Panics
/// When [`LatentShape::validate`] or [`Attention::validate`] refuses them.
#[must_use]
pub fn variant(shape: &LatentShape, num_heads: u32, attention: &Attention, registers: Registers) -> Variant {
    let variant = attention.order(of(shape, num_heads, registers), &shape.values(), 1);
    one_cache(variant, attention)
}

/// The kernel over a window cache and a compressed cache of `shape`, by lists of slots, for lanes with `registers`.
///
/// # Panics
/// When [`LatentShape::validate`] refuses it.
#[must_use]
pub fn variant_of_two(shape: &LatentShape, num_heads: u32, registers: Registers) -> Variant {
    two_caches(of(shape, num_heads, registers))
}

/// Completes a variant over one cache, with lists if `attention` has some.
pub(super) fn one_cache(variant: Variant, attention: &Attention) -> Variant {
    variant.with("tables").with_if("selected", attention.context != Context::Full)
}

/// Completes a variant over two caches.
pub(super) fn two_caches(variant: Variant) -> Variant {
    variant.set(TWO, true).with("compressed").with("window_slots").with("compressed_slots")
}

fn of(shape: &LatentShape, num_heads: u32, registers: Registers) -> Variant {
    shape.check();
    let division = Division::of(registers);
    let word = if shape.dtype == KvDtype::F32 { 4 } else { 8 };
    let key_words = division.channels / word;
    let spans = (shape.width() / word).div_ceil(key_words);
    let [ahead, ahead_f32] = division.ahead;
    let piece = division.piece[usize::from(shape.dtype.is_code())];
    let variant = Variant::new(&KERNEL)
        .set(slot::LATENT, shape.latent)
        .set(slot::ROPE, shape.rope)
        .set(slot::BLOCK_SIZE, shape.block_size)
        .set(slot::HEADS, heads_per_group(num_heads, registers))
        .set(KEY_WORDS, key_words)
        .set(VALUE_WORDS, (shape.latent / word).div_ceil(spans))
        .set(WORD_QUADS, word / 4)
        .set(PIECES, (spans / piece).max(1))
        .set(LATENTS_AHEAD, if shape.dtype == KvDtype::F32 { ahead_f32 } else { ahead })
        .set(STEADY, division.steady)
        .for_registers(registers)
        .over_stored(ELEMENT, shape.element(), shape.stored());
    shape.sized(variant)
}
