//! Choices that a case leaves open: the usual values, draws from a seed, or the sizes of a kernel that is timed.

use std::cell::Cell;
use std::ops::RangeInclusive;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::block_lists::Lists;
use super::layer::{self, Layer};
use crate::kernel::KvShape;
use crate::kernel::paged_decode::PARTITION;

/// A prime that scatters indices when it multiplies them.
pub(crate) const SPREAD: u32 = 7919;

/// Factors on queries. With large factors, single logits dominate, and the running maximum grows many times.
pub(crate) const LOUDNESS: [f32; 4] = [0.25, 1.0, 1.0, 4.0];

/// A number of keys for a single partition: larger than any row of a case, and a multiple of blocks and steps.
pub(crate) const WHOLE: u32 = 1 << 31;

/// Choices of the open properties of a case: data, rows, lengths, heads, strides. By default, every property has its
/// usual value.
///
/// A kernel's cases ask for them one after the other, so equal specs give one variant equal cases.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    seed: Option<u64>,
    size: Option<Size>,
    draws: Cell<u64>,
    /// Whether lists contain all blocks.
    lists_all: bool,
    /// Block size in tokens whose multiples lengths lie near; `None` for the variant's block size.
    edges: Option<u32>,
    /// Whether a row's keys are in one partition.
    whole: bool,
    /// Number of rows, of columns, and of blocks of 32 elements of a matrix product.
    product: Option<[u32; 3]>,
}

/// Sizes of a case that is only timed. Each kernel takes those that its variant leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of query heads.
    pub num_heads: u32,
    /// Cache of keys and values.
    pub cache: KvShape,
    /// Number of rows, or of the blocks, entries or lists that a kernel processes one by one.
    pub rows: u32,
    /// Number of sequences.
    pub batch: u32,
    /// Number of tokens of each sequence, or of the longest one if `shortest` is set.
    pub context: u32,
    /// Number of tokens of the shortest sequence, if lengths differ. The logarithms of lengths are then uniformly
    /// distributed.
    pub shortest: Option<u32>,
    /// Number of keys of a partition of attention, or number of blocks of 32 elements in a part of a split matrix
    /// product.
    pub partition: u32,
    /// Number of tokens of a block that lists select.
    pub select_block: u32,
    /// Share of a sequence's blocks that lists hold.
    pub density: f64,
    /// Number of scores that a selection keeps.
    pub k: u32,
    /// Number of activations in an input row of a matrix product.
    pub width: u32,
    /// Number of elements in an output row of a matrix product.
    pub cols: u32,
    /// Number of logits of a row.
    pub vocab: u32,
}

impl Size {
    /// Returns the number of tokens of each sequence.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length")]
    pub fn lens(&self) -> Vec<u32> {
        let Some(shortest) = self.shortest else { return vec![self.context; self.batch as usize] };
        let mut rng = StdRng::seed_from_u64(7);
        let [low, high] = [shortest, self.context].map(|len| f64::from(len).ln());
        (0..self.batch).map(|_| rng.random_range(low..high).exp() as u32).collect()
    }
}

impl Spec {
    /// Creates a spec that takes sizes from `size`, and minimum values for everything else. The first case is
    /// to be timed. Large ones have random data and no references.
    #[must_use]
    pub const fn sized(size: Size) -> Self {
        Self { size: Some(size), ..Self::usual() }
    }

    /// The sizes of a case that is only timed.
    #[must_use]
    pub const fn size(&self) -> Option<&Size> {
        self.size.as_ref()
    }

    /// Returns a number of the spec's size if it has one, else a number from `range`.
    pub fn named(&self, of: impl Fn(&Size) -> u32, usual: u32, range: RangeInclusive<u32>) -> u32 {
        self.size().map_or_else(|| self.number(usual, range), of)
    }

    /// Number of elements of a row.
    #[must_use]
    pub fn width(&self, usual: u32, range: RangeInclusive<u32>) -> u32 {
        self.named(|size| size.width, usual, range)
    }

    /// Number of rows, or of the items that the kernel processes in place of rows.
    #[must_use]
    pub fn rows(&self, usual: u32, range: RangeInclusive<u32>) -> u32 {
        self.named(|size| size.rows, usual, range)
    }

    /// Number of keys of a partition, [`PARTITION`] by default.
    pub(crate) fn partition(&self, sizes: &[u32]) -> u32 {
        let partition = self.size().map_or_else(|| self.one_of(PARTITION, sizes), |size| size.partition);
        if self.whole { WHOLE } else { partition }
    }

    /// Whether a row's keys are in one partition.
    pub(crate) const fn is_whole(&self) -> bool {
        self.whole
    }

    /// Chooses one of the factors `loudness`; returns it, and queries as [`layer::queries`] makes them, multiplied by
    /// it. Their seed is `usual` by default.
    pub(crate) fn queries(
        &self,
        [rows, used, stride]: [usize; 3],
        usual: u64,
        loudness: &[f32],
    ) -> (f32, Vec<f32>) {
        let loud = self.one_of(1.0, loudness);
        let q = layer::queries(rows, used, stride, self.seed(usual));
        (loud, q.into_iter().map(|x| loud * x).collect())
    }

    /// Number of KV heads.
    #[must_use]
    pub fn kv_heads(&self, usual: u32, range: RangeInclusive<u32>) -> u32 {
        self.named(|size| size.cache.num_kv_heads, usual, range)
    }

    /// Number of query heads of a KV head.
    #[must_use]
    pub fn group(&self, usual: u32, range: RangeInclusive<u32>) -> u32 {
        self.named(|size| size.num_heads / size.cache.num_kv_heads, usual, range)
    }

    /// Makes lists of blocks for sequences of these lengths. A timed case lists a fixed fraction of the blocks; other
    /// cases draw each block with a probability.
    pub(crate) fn lists(&self, lens: impl Iterator<Item = u32>, block: u32, usual: (f64, u64)) -> Lists {
        match self.size {
            Some(size) => Lists::share(lens, block, size.density),
            None => Lists::random(lens, block, self.density(usual.0), self.seed(usual.1)),
        }
    }

    /// Makes a layer of sequences of these lengths, without contents if the case is only timed.
    pub(crate) fn layer(&self, shape: KvShape, lens: &[u32], usual: u64) -> Layer {
        match self.size {
            Some(_) => Layer::empty(shape, lens, usual),
            None => Layer::new(shape, lens, self.seed(usual)),
        }
    }

    /// Creates a spec that draws every open property of a case from `seed`.
    #[must_use]
    pub const fn random(seed: u64) -> Self {
        Self { seed: Some(seed), ..Self::usual() }
    }

    /// Creates the default spec, in which every property has its usual value.
    const fn usual() -> Self {
        let draws = Cell::new(0);
        Self { seed: None, size: None, draws, lists_all: false, edges: None, whole: false, product: None }
    }

    /// Returns the spec with lists of all blocks, so that a variant with lists gets the same case as one that attends
    /// all blocks.
    #[must_use]
    pub const fn listing_all(self) -> Self {
        Self { lists_all: true, ..self }
    }

    /// Returns the spec with lengths near multiples of `block` tokens, so that variants for different blocks get the
    /// same sequences.
    #[must_use]
    pub const fn at_edges_of(self, block: u32) -> Self {
        Self { edges: Some(block), ..self }
    }

    /// Returns the spec with all keys of a row in one partition; its reference is attention to all keys.
    #[must_use]
    pub const fn in_one_partition(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Returns the spec with matrix products of this shape (rows, columns, blocks of 32 elements), so that variants
    /// with different tiles get the same products.
    #[must_use]
    pub const fn multiplying(self, shape: [u32; 3]) -> Self {
        Self { product: Some(shape), ..self }
    }

    /// Rows, columns and blocks of 32 elements of products, if the spec names them.
    #[must_use]
    pub const fn product(&self) -> Option<[u32; 3]> {
        self.product
    }

    /// Returns a spec for additional choices, whose number does not affect later choices of this spec.
    pub(crate) fn aside(&self) -> Self {
        let seed = self.rng().map(|mut rng| rng.random());
        Self { seed, draws: Cell::new(0), ..self.clone() }
    }

    /// Returns the random generator of the next choice; `None` if choices have their usual values.
    fn rng(&self) -> Option<StdRng> {
        let seed = self.seed?;
        let draw = self.draws.get() + 1;
        self.draws.set(draw);
        Some(StdRng::seed_from_u64(seed ^ draw.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Chooses a number from `range`; without a seed, `usual`, or the minimum in a timed case.
    pub fn number(&self, usual: u32, range: RangeInclusive<u32>) -> u32 {
        let usual = if self.size.is_some() { *range.start() } else { usual };
        self.rng().map_or(usual, |mut rng| rng.random_range(range))
    }

    /// Chooses one of `values`.
    pub fn one_of<T: Copy>(&self, usual: T, values: &[T]) -> T {
        self.rng().map_or(usual, |mut rng| values[rng.random_range(0..values.len())])
    }

    /// Chooses a seed of random data.
    pub fn seed(&self, usual: u64) -> u64 {
        self.rng().map_or(usual, |mut rng| rng.random())
    }

    /// Chooses the fraction of blocks in lists: none, some or all.
    pub fn density(&self, usual: f64) -> f64 {
        if self.lists_all { 1.0 } else { self.one_of(usual, &[0.0, 0.1, 0.3, 0.6, 0.9, 1.0]) }
    }

    /// Makes numbers in -1..1, by default from the seed `usual`.
    #[must_use]
    pub fn floats(&self, len: usize, usual: u64) -> Vec<f32> {
        layer::floats(len, self.seed(usual))
    }

    /// Makes a list of one to `most` items, each drawn by `draw`; by default the items of `usual`.
    pub fn list<T: Clone>(&self, usual: &[T], most: u32, draw: impl Fn(&Self) -> T) -> Vec<T> {
        match self.size {
            Some(size) => (0..size.batch).map(|_| draw(self)).collect(),
            None if self.seed.is_none() => usual.into(),
            None => (0..self.number(0, 1..=most)).map(|_| draw(self)).collect(),
        }
    }

    /// Chooses a length in tokens. Half of the lengths are close to a multiple of the block size.
    pub fn len(&self, usual: u32, block: u32, range: RangeInclusive<u32>) -> u32 {
        let Some(mut rng) = self.rng() else { return self.size.map_or(usual, |size| size.context) };
        let (least, most) = range.into_inner();
        let block = self.edges.unwrap_or(block);
        let len = rng.random_range(least..=most);
        let near = (len / block * block + rng.random_range(0..3)).saturating_sub(1);
        if rng.random() { len } else { near.clamp(least, most) }
    }

    /// Chooses the lengths of up to six sequences.
    #[must_use]
    pub fn lens(&self, usual: &[u32], block: u32, range: RangeInclusive<u32>) -> Vec<u32> {
        if let Some(size) = self.size() {
            return size.lens();
        }
        self.list(usual, 6, |spec| spec.len(0, block, range.clone()))
    }

    /// Chooses distinct slots below `count` for `rows` rows; -1 for a row that writes nothing.
    pub fn slots(&self, rows: u32, count: u32, usual: impl Fn(u32) -> Option<u32>) -> Vec<i32> {
        let mut free: Vec<u32> = (0..count).collect();
        let slot = |row| match self.rng() {
            None => usual(row),
            Some(mut rng) => {
                (!rng.random_bool(0.2)).then(|| free.swap_remove(rng.random_range(0..free.len())))
            }
        };
        (0..rows).map(slot).map(|slot| slot.map_or(-1, u32::cast_signed)).collect()
    }
}
