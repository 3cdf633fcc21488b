//! Multiplies quantised matrices by many rows with cooperative matrices: `matmul` of the coop level.
//!
//! Bindings, parameters, rows and epilogues are those of [`matmul`](super::matmul), but x may be f16. Activations (which must not
//! exceed 65,504, f16's largest number) and dequantised weights are rounded to f16, sums are f32. Runs where
//! [`Gpu::runs_coop`](attn_kernels::gpu::Gpu::runs_coop) says so; pays from some 32 rows on.

use super::matmul::{MatmulParams, Rows, tiled_grid};
use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::profile::{DeviceProfile, Tuning};
use attn_kernels::slot::{self, Flag, Number, OneOf};
use attn_kernels::{Variant, kernel};

use super::matmul::EPILOGUE;
use super::matmul::Epilogue;
use super::matmul::WEIGHTS;
use crate::pack::Format;

kernel! {
    /// The kernel, with the parameters and bindings of [`matmul`](super::matmul).
    "matmul_coop"(super::matmul::MatmulParams, super::matmul::MatmulBuffers): Dense,
    grid: grid,
    modules: [super::MODULES],
    listed: listed,
    variants: "all encodings; store, add, silu_mul; x in f32 or f16; tiles of 16 to 128 rows; splits along k, of a workgroup each or all of one; routed pairs (and tiles, order)",
    bytes: "the matrix once for each tile of rows; `8` per partial sum of a split",
    cases: crate::self_test::matmul::matmul_coop,
}

fn listed(_: &Sizes) -> Listed {
    let summing = TilePlan::invariant(&DeviceProfile::H200, [2048, 4096, 1024], Epilogue::Add, 0).tile;
    let routed = |rows, activations| routed(Format::Mxfp4, activations, CoopTile::routed(rows));
    [
        ("q4", variant(Format::Q4, Epilogue::Store, Activations::F32, CoopTile::wide(1))),
        ("q4-few", variant(Format::Q4, Epilogue::SiluMul, Activations::F16, CoopTile::few(1, 2))),
        ("q4-middle", variant(Format::Q4, Epilogue::Store, Activations::F16, CoopTile::middle(1))),
        ("q8", variant(Format::Q8, Epilogue::Store, Activations::F16, CoopTile::few(2, 1))),
        ("f16", variant(Format::F16, Epilogue::Store, Activations::F16, CoopTile::square(4, 4))),
        ("q4-summing", variant(Format::Q4, Epilogue::Add, Activations::F16, summing)),
        ("mxfp4-routed-few", routed(8, Activations::F32)),
        ("mxfp4-routed", routed(96, Activations::F16)),
    ]
    .map(|(part, variant)| (part.to_owned(), variant))
    .into()
}

/// Division of the work: a workgroup owns `rows()` rows and `cols()` columns of each part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CoopTile {
    /// Number of tiles of 16 rows that a subgroup of 32 lanes computes.
    pub m_tiles: u32,
    /// Number of tiles of 16 columns that a subgroup computes, in each part.
    pub n_tiles: u32,
    /// Number of subgroups along rows.
    pub m_subgroups: u32,
    /// Number of subgroups along columns.
    pub n_subgroups: u32,
    /// Number of blocks of 32 along k in workgroup memory at a time.
    pub k_blocks: u32,
    /// Number of stages, of `k_blocks` blocks each, that are loaded ahead into registers.
    pub ahead: u32,
    /// Whether a workgroup computes all splits along k and adds up their sums; otherwise every split has its own
    /// workgroup, and `split_sum` follows if there are several.
    pub all_splits: bool,
}

/// The element type of activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activations {
    /// f32, rounded when it is loaded.
    F32,
    /// f16, as [`round_rows`](super::round_rows) writes them.
    F16,
}

/// Ways in which weights become f16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbers {
    Nibbles,
    E2m1,
    Codes,
    Floats,
}

/// Way in which weights become f16.
const NUMBERS: OneOf<Numbers> = OneOf::new(
    "numbers",
    &[
        (Numbers::Nibbles, "f16_of_nibbles"),
        (Numbers::E2m1, "f16_of_e2m1"),
        (Numbers::Codes, "f16_of_codes"),
        (Numbers::Floats, "f16_of_floats"),
    ],
);
/// Type of activations.
pub(crate) const ACTIVATIONS: OneOf<Activations> = OneOf::new(
    "activations",
    &[(Activations::F32, "activations_f32"), (Activations::F16, "activations_f16")],
);
/// Number of blocks along k of a step.
pub(crate) const K_BLOCKS: Number = Number("K_BLOCKS");
/// Number of tiles of a subgroup along rows.
pub(crate) const M_TILES: Number = Number("M_TILES");
/// Number of tiles of a subgroup along columns.
pub(crate) const N_TILES: Number = Number("N_TILES");
/// Subgroups along rows.
pub(crate) const M_SUBGROUPS: Number = Number("M_SUBGROUPS");
/// Subgroups along columns.
pub(crate) const N_SUBGROUPS: Number = Number("N_SUBGROUPS");
/// Number of loads of activations per lane.
pub(crate) const X_LOADS: Number = Number("X_LOADS");
/// Number of loads of weights per lane.
pub(crate) const W_LOADS: Number = Number("W_LOADS");
/// Number of groups of four weights per load.
pub(crate) const W_QUADS: Number = Number("W_QUADS");
/// Number of parts after the first whose results have workgroup memory of their own before the epilogue.
pub(crate) const BESIDE: Number = Number("BESIDE");
/// Number of parts whose results use the first part's workgroup memory after it.
pub(crate) const AFTER: Number = Number("AFTER");
/// Whether whole tiles are stored without a detour through workgroup memory.
pub(crate) const DIRECT: Flag = Flag("DIRECT");
/// Whether results are added to `y`.
pub(crate) const ADDS: Flag = Flag("ADDS");
/// Whether a workgroup adds up all splits.
pub(crate) const SPLITS_WITHIN: Flag = Flag("SPLITS_WITHIN");
/// Number of tiles of a subgroup for which sums over splits have memory.
pub(crate) const TOTAL_TILES: Number = Number("TOTAL_TILES");

impl CoopTile {
    /// The tile of a variant.
    pub(crate) fn of(variant: &Variant) -> Self {
        Self {
            m_tiles: variant.number(M_TILES),
            n_tiles: variant.number(N_TILES),
            m_subgroups: variant.number(M_SUBGROUPS),
            n_subgroups: variant.number(N_SUBGROUPS),
            k_blocks: variant.number(K_BLOCKS),
            ahead: variant.number(slot::AHEAD),
            all_splits: variant.get(SPLITS_WITHIN) == Some(true),
        }
    }

    /// Returns the tiles for matrices of `parts` parts. Tiles for few rows have four stages of weights in flight, since
    /// such products wait for weights. Large tiles, for many rows, read everything less often.
    fn all(parts: u32) -> [Self; 5] {
        [
            Self::few(1, parts),
            Self::few(2, parts),
            Self::few(4, parts),
            Self::middle(parts),
            Self::wide(parts),
        ]
    }

    /// The tile for products with several matrices, each of which has `rows` pairs on average: the smallest tile that
    /// holds the pairs of most matrices. A second tile would read all weights again for a few pairs; empty rows cost
    /// less.
    #[must_use]
    pub fn routed(rows: u32) -> Self {
        match rows {
            ..=12 => Self::few(1, 1),
            13..=26 => Self::few(2, 1),
            27..=52 => Self::few(4, 1),
            _ => Self::square(4, 4),
        }
    }

    /// A tile of few rows, and of 128 columns in all parts together.
    fn few(m_tiles: u32, parts: u32) -> Self {
        Self { m_subgroups: 1, n_subgroups: 4, ahead: 4, ..Self::square(m_tiles, 2 / parts) }
    }

    /// A tile of two subgroups along rows and two along columns.
    fn square(m_tiles: u32, n_tiles: u32) -> Self {
        Self { m_tiles, n_tiles, m_subgroups: 2, n_subgroups: 2, k_blocks: 1, ahead: 1, all_splits: false }
    }

    /// A tile of 96 rows, and of 128 columns in all parts together.
    fn middle(parts: u32) -> Self {
        Self { m_tiles: 3, ..Self::square(4, 4 / parts) }
    }

    /// A tile of 128 rows, and of 256 columns in all parts together.
    fn wide(parts: u32) -> Self {
        Self { n_subgroups: 4, ahead: 2, ..Self::square(4, 4 / parts) }
    }

    /// Number of rows of a workgroup.
    #[must_use]
    pub fn rows(self) -> u32 {
        16 * self.m_tiles * self.m_subgroups
    }

    /// Number of columns of a workgroup, in each part.
    #[must_use]
    pub fn cols(self) -> u32 {
        16 * self.n_tiles * self.n_subgroups
    }

    /// Number of workgroups along columns and along rows, for `rows` rows and `cols` columns of one part.
    fn workgroups(self, [rows, cols]: [u32; 2]) -> [u32; 2] {
        [cols.div_ceil(self.cols()), rows.div_ceil(self.rows())]
    }

    /// Number of parts after the first whose results have workgroup memory of their own before the epilogue. In large
    /// tiles this saves barriers, which take time there, and few workgroups share a multiprocessor anyway.
    fn beside(self, parts: u32) -> u32 {
        if self.rows() > 64 { parts - 1 } else { 0 }
    }

    /// Bytes of workgroup memory: padded tiles of f16, and matrices of f32 of each subgroup.
    fn memory(self, parts: u32) -> u32 {
        let stride = 8 * (8 * self.k_blocks + 2);
        let results = self.lanes() / 32 * 1024 * (1 + self.beside(parts));
        (self.rows() + self.cols() * parts) * stride + results
    }

    fn lanes(self) -> u32 {
        32 * self.m_subgroups * self.n_subgroups
    }
}

/// Returns the variant for one coding of weights, epilogue, element type of activations, and tile.
///
/// # Panics
/// When the lanes of a workgroup cannot share the tile's blocks of weights and quads of activations evenly.
#[must_use]
pub fn variant(format: Format, epilogue: Epilogue, activations: Activations, tile: CoopTile) -> Variant {
    tiled(format, epilogue, activations, tile).set(DIRECT, epilogue.parts() == 1)
}

fn tiled(format: Format, epilogue: Epilogue, activations: Activations, tile: CoopTile) -> Variant {
    let parts = epilogue.parts();
    let (lanes, blocks) = (tile.lanes(), tile.cols() * parts * tile.k_blocks);
    let (w_quads, x_quads) = (8 * blocks, 8 * tile.rows() * tile.k_blocks);
    let w_loads = (blocks / lanes).max(1);
    let even = w_quads.is_multiple_of(w_loads * lanes) && x_quads.is_multiple_of(lanes);
    let numbers = match format {
        Format::Q4 | Format::Q4K => Numbers::Nibbles,
        Format::Mxfp4 => Numbers::E2m1,
        _ if format.has_codes() => Numbers::Codes,
        _ => Numbers::Floats,
    };
    let totals = if tile.all_splits { tile.m_tiles * tile.n_tiles * parts } else { 1 };
    assert!(even, "{tile:?}: {w_quads} quads of weights, {x_quads} of activations, {lanes} lanes");
    Variant::new(&KERNEL)
        .with_matrices()
        .set_data(WEIGHTS, format, format.label())
        .set(NUMBERS, numbers)
        .set(EPILOGUE, epilogue)
        .set(ACTIVATIONS, activations)
        .set(slot::PARTS, parts)
        .set(K_BLOCKS, tile.k_blocks)
        .set(M_TILES, tile.m_tiles)
        .set(N_TILES, tile.n_tiles)
        .set(M_SUBGROUPS, tile.m_subgroups)
        .set(N_SUBGROUPS, tile.n_subgroups)
        .set(slot::AHEAD, tile.ahead)
        .set(X_LOADS, x_quads / lanes)
        .set(W_LOADS, w_loads)
        .set(W_QUADS, w_quads / (w_loads * lanes))
        .set(BESIDE, tile.beside(parts))
        .set(AFTER, parts - 1 - tile.beside(parts))
        .set(ADDS, epilogue == Epilogue::Add)
        .set(SPLITS_WITHIN, tile.all_splits)
        .set(TOTAL_TILES, totals)
}

/// Returns the variant that multiplies each pair by one of several matrices, in tiles of
/// [`moe_sort`](super::moe_sort), and stores the products.
///
/// # Panics
/// As [`variant`].
#[must_use]
pub fn routed(format: Format, activations: Activations, tile: CoopTile) -> Variant {
    // Results of pairs do not lie one after the other.
    Rows::Routed.apply(tiled(format, Epilogue::Store, activations, tile).set(DIRECT, false))
}

/// Model of the time that the workgroups of a tile take, in microseconds on an H200. Only ratios of times count, so
/// the model applies to other devices too.
///
/// Fitted to 2,400 times of 170 products of `Q4_K` (1,024 to 14,336 features, 1,024 to 14,336 columns, 16 to 2,048 rows, 1 to 16
/// splits), which it meets within 8 %. The plan that it chooses takes 1 % longer than the fastest one, by the geometric mean.
struct Pace {
    /// Time of a block along k in a workgroup that has a multiprocessor for itself.
    alone: f32,
    /// Time of a block along k in each of several workgroups that fill a multiprocessor.
    shared: f32,
    /// Number of workgroups that a multiprocessor holds at a time.
    held: u32,
    /// Cost of the beginning and the end of a workgroup, as a number of blocks that take the same time.
    ends: f32,
}

impl Pace {
    /// Returns the model of a tile, by its number of rows.
    fn of(tile: CoopTile) -> Self {
        let pace = |alone, shared, held, ends| Self { alone, shared, held, ends };
        match tile.rows() {
            ..=16 => pace(0.308, 0.172, 3, 4.1),
            17..=32 => pace(0.389, 0.244, 2, 8.0),
            33..=64 => pace(0.535, 0.345, 2, 13.4),
            65..=96 => pace(0.953, 0.302, 2, 15.5),
            _ => pace(1.207, 1.044, 4, 17.0),
        }
    }

    /// Time of `workgroups` workgroups of `blocks` blocks each on a multiprocessor.
    fn time(&self, workgroups: u32, blocks: u32) -> f32 {
        let together = |workgroups: u32| self.alone.max(workgroups as f32 * self.shared);
        let rest = if workgroups.is_multiple_of(self.held) { 0.0 } else { together(workgroups % self.held) };
        ((workgroups / self.held) as f32 * together(self.held) + rest) * (blocks as f32 + self.ends)
    }
}

/// Time of adding up splits, in addition to `MILLION_SUMS` for each million of partial sums.
const SUM: f32 = 5.85;
const MILLION_SUMS: f32 = 1.31;

/// Numbers of splits that are tried.
const SPLITS: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

/// Minimum number of blocks along k of a split, so that its partial sums pay.
const MIN_SPLIT_BLOCKS: u32 = 4;

/// Maximum number of partial sums that a decoder has memory for: 64 rows of 8,192 columns in eight splits.
pub const MAX_PARTIALS: usize = 4 << 20;

/// Division of a product among workgroups. The product has `rows` rows, `cols` columns in each part of the matrix,
/// and `blocks` blocks along k.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TilePlan {
    /// Rows and columns of a workgroup.
    pub tile: CoopTile,
    /// Number of blocks along k of a split, whose sums are added up at the end.
    pub split_blocks: u32,
}

impl TilePlan {
    /// The division that takes the least time by a model. Only products with one part are split, with at most
    /// `max_partials` partial sums. O(tiles * splits).
    #[must_use]
    pub fn fastest(
        profile: &DeviceProfile,
        shape: [u32; 3],
        epilogue: Epilogue,
        max_partials: usize,
    ) -> Self {
        let ([rows, cols, blocks], max_partials) = (shape, partials_of(epilogue, max_partials));
        let pays = |tile: CoopTile, splits: u32| {
            let [x, y] = tile.workgroups([rows, cols]);
            let partials = splits as usize * rows as usize * cols as usize;
            // Splits fill a device that is not full.
            let fills = x * y * (splits - 1) < profile.tuning.tiles;
            splits == 1 || fills && partials <= max_partials && blocks / splits >= MIN_SPLIT_BLOCKS
        };
        let tiles = CoopTile::all(epilogue.parts()).into_iter();
        let tiles = tiles.filter(|tile| tile.memory(epilogue.parts()) <= profile.workgroup_bytes);
        let plans = tiles.flat_map(|tile| {
            // Whole rounds of stages: the kernel multiplies those behind the end by zeros.
            let round = tile.k_blocks * tile.ahead;
            let split = move |splits| blocks.div_ceil(splits).next_multiple_of(round).min(blocks);
            let splits = SPLITS.into_iter().filter(move |splits| pays(tile, *splits));
            splits.map(move |splits| Self { tile, split_blocks: split(splits) })
        });
        let time = |plan: &Self| plan.time(&profile.tuning, shape);
        let fastest = plans.map(|plan| (time(&plan), plan)).min_by(|a, b| a.0.total_cmp(&b.0));
        let few = CoopTile::few(1, epilogue.parts());
        fastest.map_or(Self { tile: few, split_blocks: blocks }, |(_, plan)| plan)
    }

    /// Modelled time of a product, in microseconds on an H200. [`Tuning::tiles`] counts two workgroups for each
    /// multiprocessor.
    fn time(self, tuning: &Tuning, [rows, cols, blocks]: [u32; 3]) -> f32 {
        let splits = self.splits(blocks);
        let [x, y] = self.tile.workgroups([rows, cols]);
        let here = (x * y * splits).div_ceil((tuning.tiles / 2).max(1));
        let sums = splits as f32 * rows as f32 * cols as f32 * 1e-6;
        let adding = if splits == 1 { 0.0 } else { SUM + MILLION_SUMS * sums };
        Pace::of(self.tile).time(here, self.split_blocks) + adding
    }

    /// A division with which a row's result is the same to the bit whatever the number of rows and the row's place:
    /// the splits are as for sixteen rows, and every sum goes along k in order. No specification promises that a
    /// matrix multiplication adds in the same order in all of its places; tests check that devices do.
    #[must_use]
    pub fn invariant(
        profile: &DeviceProfile,
        shape: [u32; 3],
        epilogue: Epilogue,
        max_partials: usize,
    ) -> Self {
        let [rows, cols, blocks] = shape;
        let few = |m_tiles| CoopTile::few(m_tiles, epilogue.parts());
        let most = partials_of(epilogue, MAX_PARTIALS);
        let split_blocks = split_blocks(&profile.tuning, few(1), [16, cols, blocks], most);
        let splits = blocks.div_ceil(split_blocks) as usize;
        let tile = match rows {
            ..=64 if splits * rows as usize * cols as usize <= max_partials || splits == 1 => {
                few(rows.div_ceil(16).next_power_of_two())
            }
            _ if splits == 1 => Self::fastest(profile, shape, epilogue, 0).tile,
            _ => CoopTile { all_splits: true, ..CoopTile::square(2, 4) },
        };
        Self { tile, split_blocks }
    }

    /// Number of splits that have workgroups of their own.
    #[must_use]
    pub fn splits(self, blocks: u32) -> u32 {
        if self.tile.all_splits { 1 } else { blocks.div_ceil(self.split_blocks) }
    }
}

/// Maximum number of partial sums of a product: none if two parts meet in the epilogue, which needs whole sums.
fn partials_of(epilogue: Epilogue, max_partials: usize) -> usize {
    if epilogue.parts() == 1 { max_partials } else { 0 }
}

/// Number of blocks along k of each split of a product of `[rows, cols, blocks]`; `blocks` if it is not split. There
/// are enough splits for workgroups to fill the device, as far as partial sums stay within `max_partials`.
fn split_blocks(tuning: &Tuning, tile: CoopTile, [rows, cols, blocks]: [u32; 3], max_partials: usize) -> u32 {
    let [x, y] = tile.workgroups([rows, cols]);
    let fitting = max_partials / (rows as usize * cols as usize).max(1);
    let splits = (tuning.tiles / (x * y)).min(blocks / MIN_SPLIT_BLOCKS);
    let splits = u32::try_from(fitting).unwrap_or(u32::MAX).min(splits).max(1);
    // Whole rounds of stages: the kernel multiplies those behind the end by zeros.
    blocks.div_ceil(splits).next_multiple_of(tile.k_blocks * tile.ahead).min(blocks)
}

fn grid(params: &MatmulParams, variant: &Variant) -> [u32; 3] {
    let plan = TilePlan { tile: CoopTile::of(variant), split_blocks: params.split_blocks };
    let [columns, row_tiles, _] = tiled_grid(params, variant, [plan.tile.rows(), plan.tile.cols()]);
    [columns, row_tiles, plan.splits(params.blocks)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceProfile = DeviceProfile::H200;

    fn line([rows, cols, blocks]: [u32; 3], plan: TilePlan) -> String {
        let TilePlan { tile, split_blocks } = plan;
        let ([x, y], z) = (tile.workgroups([rows, cols]), plan.splits(blocks));
        let splits = blocks.div_ceil(split_blocks);
        let whose = if tile.all_splits { "within a workgroup" } else { "of their own" };
        format!(
            "{rows} rows: {x} x {y} x {z} tiles of {} x {}, {splits} splits {whose}",
            tile.rows(),
            tile.cols()
        )
    }

    #[test]
    fn plans_of_products_of_8b() {
        let mut lines = Vec::new();
        for (name, [cols, blocks], epilogue) in [
            ("4096 x 4096", [4096, 128], Epilogue::Add),
            ("4096 x 2 x 14336", [14336, 128], Epilogue::SiluMul),
        ] {
            for (kind, plan) in
                [("fastest", TilePlan::fastest as fn(_, _, _, _) -> _), ("invariant", TilePlan::invariant)]
            {
                lines.push(format!("{name}, {kind}"));
                for rows in [1, 64, 65, 2048] {
                    let shape = [rows, cols, blocks];
                    lines.push(format!("  {}", line(shape, plan(&H200, shape, epilogue, MAX_PARTIALS))));
                }
            }
        }
        lines.extend([12, 13, 27, 53].map(|rows| {
            let tile = CoopTile::routed(rows);
            format!("{rows} pairs of an expert: tiles of {} x {}", tile.rows(), tile.cols())
        }));
        insta::assert_snapshot!(lines.join("\n"), @"
        4096 x 4096, fastest
          1 rows: 32 x 1 x 8 tiles of 16 x 128, 8 splits of their own
          64 rows: 32 x 2 x 4 tiles of 32 x 128, 4 splits of their own
          65 rows: 32 x 2 x 4 tiles of 64 x 128, 4 splits of their own
          2048 rows: 16 x 16 x 1 tiles of 128 x 256, 1 splits of their own
        4096 x 4096, invariant
          1 rows: 32 x 1 x 8 tiles of 16 x 128, 8 splits of their own
          64 rows: 32 x 1 x 8 tiles of 64 x 128, 8 splits of their own
          65 rows: 32 x 2 x 1 tiles of 64 x 128, 8 splits within a workgroup
          2048 rows: 32 x 32 x 1 tiles of 64 x 128, 8 splits within a workgroup
        4096 x 2 x 14336, fastest
          1 rows: 224 x 1 x 1 tiles of 16 x 64, 1 splits of their own
          64 rows: 224 x 1 x 1 tiles of 64 x 64, 1 splits of their own
          65 rows: 224 x 1 x 1 tiles of 96 x 64, 1 splits of their own
          2048 rows: 112 x 16 x 1 tiles of 128 x 128, 1 splits of their own
        4096 x 2 x 14336, invariant
          1 rows: 224 x 1 x 1 tiles of 16 x 64, 1 splits of their own
          64 rows: 224 x 1 x 1 tiles of 64 x 64, 1 splits of their own
          65 rows: 224 x 1 x 1 tiles of 96 x 64, 1 splits of their own
          2048 rows: 112 x 16 x 1 tiles of 128 x 128, 1 splits of their own
        12 pairs of an expert: tiles of 16 x 128
        13 pairs of an expert: tiles of 32 x 128
        27 pairs of an expert: tiles of 64 x 128
        53 pairs of an expert: tiles of 128 x 128
        ");
    }

    /// More rows take more time, and never more than two runs of half of them.
    #[test]
    fn time_grows_with_rows_and_no_faster() {
        for epilogue in [Epilogue::Store, Epilogue::SiluMul] {
            for (cols, blocks) in
                [(64, 18), (1024, 32), (3072, 256), (4096, 448), (5120, 160), (8192, 896), (128_256, 128)]
            {
                let time = |rows| {
                    let shape = [rows, cols, blocks];
                    TilePlan::fastest(&H200, shape, epilogue, MAX_PARTIALS).time(&H200.tuning, shape)
                };
                for rows in [1, 8, 16, 17, 48, 64, 100, 128, 384, 1024, 2048] {
                    let (one, two) = (time(rows), time(2 * rows));
                    assert!(
                        one <= two && two <= 2.0 * one,
                        "{rows} rows of {cols} x {blocks}: {one}, then {two}"
                    );
                }
            }
        }
    }

    /// The bits of a sum depend on its splits, so the splits must not depend on rows.
    #[test]
    fn invariant_plans_cut_sums_alike_for_any_rows() {
        for epilogue in [Epilogue::Add, Epilogue::SiluMul] {
            for (cols, blocks) in [(64, 18), (576, 48), (4096, 128), (6144, 65), (4096, 448), (128_256, 128)]
            {
                let cut = |rows| {
                    TilePlan::invariant(&H200, [rows, cols, blocks], epilogue, MAX_PARTIALS).split_blocks
                };
                for rows in 1..400 {
                    let plan = TilePlan::invariant(&H200, [rows, cols, blocks], epilogue, MAX_PARTIALS);
                    assert_eq!(plan.split_blocks, cut(1), "{rows} rows of {cols} x {blocks}");
                    let stage = plan.tile.k_blocks * plan.tile.ahead;
                    let whole = plan.split_blocks.is_multiple_of(stage) || plan.split_blocks == blocks;
                    assert!(whole, "{plan:?}: splits of broken rounds");
                    let partials = (plan.splits(blocks) * rows * cols) as usize;
                    assert!(
                        plan.splits(blocks) == 1 || partials <= MAX_PARTIALS,
                        "{plan:?}: {partials} sums"
                    );
                }
            }
        }
    }
}
