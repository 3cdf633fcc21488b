//! Multiplies a quantised matrix by many rows of f32 through workgroup memory, for GPUs without cooperative matrices
//! and for rows that must keep f32.
//!
//! A result is bitwise that of [`matmul`](super::matmul).

use crate::pack::Format;
use attn_kernels::declare::{Listed, Sizes};
use attn_kernels::profile::{DeviceProfile, Registers, Tuning};
use attn_kernels::slot::{self, Number};
use attn_kernels::{Variant, kernel};

use super::matmul::EPILOGUE;
use super::matmul::WEIGHTS;
use super::matmul::{Epilogue, Rows, tiled_grid};

kernel! {
    /// The kernel, with the parameters and bindings of [`matmul`](super::matmul).
    "matmul_tile"(super::matmul::MatmulParams, super::matmul::MatmulBuffers): Dense,
    grid: |params, variant| tiled_grid(params, variant, workgroup_tile(variant)),
    modules: [super::MODULES],
    listed: listed,
    variants: "all encodings; store, add, silu_mul; 32 or 64 rows; 128 lanes, or 256 for *few registers*; several matrices as `matmul`",
    bytes: "the matrix once for a tile of rows; `4` per activation and tile of columns",
    cases: crate::self_test::matmul::matmul_tile,
}

fn listed(_: &Sizes) -> Listed {
    Registers::listed(|registers| {
        let profile = DeviceProfile::H200.registers(registers);
        let tile = |epilogue, rows| Tile::choose(&profile, epilogue, rows, u64::from(rows) << 12);
        let of = |format, epilogue, rows| variant(format, epilogue, tile(epilogue, rows));
        let several = |rows| several(rows, Format::Bf16, tile(Epilogue::Store, 256));
        let mut all = Format::listed(|format| of(format, Epilogue::Store, 256));
        all.push(("q4k-silu_mul".into(), of(Format::Q4K, Epilogue::SiluMul, 256)));
        all.push(("each".into(), several(Rows::Each)));
        all.push(("routed".into(), several(Rows::Routed)));
        if registers == Registers::Many {
            all.push(("q4k-few".into(), of(Format::Q4K, Epilogue::Add, 16)));
            all.push(("q4k-few-gelu_mul".into(), of(Format::Q4K, Epilogue::GeluMul, 16)));
        }
        all
    })
}

/// Rows and columns of a workgroup. Results do not depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tile {
    /// Number of rows of a lane, a multiple of 4.
    pub tall: u32,
    /// Number of columns of a lane in all parts together; in each part, 2 or a multiple of 4.
    pub wide: u32,
    /// Number of lanes along rows.
    pub row_lanes: u32,
    /// Number of lanes along columns.
    pub col_lanes: u32,
}

/// Number of rows of a lane.
pub(crate) const TALL: Number = Number("TALL");
/// Lanes along rows.
pub(crate) const ROW_LANES: Number = Number("ROW_LANES");
/// Lanes along columns.
pub(crate) const COL_LANES: Number = Number("COL_LANES");

impl Tile {
    /// The tile of 64 rows and 128 columns. Of eight tiles, it is the fastest for 2,048 rows on an H200, with activations
    /// in f32 and in codes.
    pub const LARGE: Self = Self { tall: 8, wide: 8, row_lanes: 8, col_lanes: 16 };

    /// [`Tile::LARGE`] with twice the lanes, each with half of the results. A lane of the large tile needs 128 registers
    /// for its sums; on an Apple M1, 300 to 400 of its values are spilled to memory.
    pub const SHARED: Self = Self { tall: 4, wide: 8, row_lanes: 16, col_lanes: 16 };

    /// The tile of 64 rows and 64 columns, for products by codes and lanes with few registers: a device without dot
    /// products of bytes keeps each byte in a register.
    pub const CODED: Self = Self { tall: 4, wide: 4, row_lanes: 16, col_lanes: 16 };

    /// The tile of a variant of `matmul_tile` or `matmul_int8_tile`.
    pub(crate) fn of(variant: &Variant) -> Self {
        Self {
            tall: variant.number(TALL),
            wide: variant.number(super::matmul::WIDE),
            row_lanes: variant.number(ROW_LANES),
            col_lanes: variant.number(COL_LANES),
        }
    }

    /// The tile of 64 rows and 128 columns, in the form for lanes with `registers`.
    #[must_use]
    pub fn large(registers: Registers) -> Self {
        match registers {
            Registers::Few => Self::SHARED,
            Registers::Many => Self::LARGE,
        }
    }

    /// The tile of `matmul_int8_tile` for lanes with `registers`.
    #[must_use]
    pub fn coded(registers: Registers) -> Self {
        match registers {
            Registers::Few => Self::CODED,
            Registers::Many => Self::LARGE,
        }
    }

    /// Number of registers, few or many, of the lanes that the tile is for; `None` if it is for all lanes.
    fn registers(&self) -> Option<Registers> {
        match *self {
            Self::LARGE => Some(Registers::Many),
            Self::SHARED | Self::CODED => Some(Registers::Few),
            _ => None,
        }
    }

    /// Number of rows of a workgroup.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.tall * self.row_lanes
    }

    /// Number of columns of a workgroup, in all parts.
    #[must_use]
    pub fn cols(&self) -> u32 {
        self.wide * self.col_lanes
    }

    fn lanes(&self) -> u32 {
        self.row_lanes * self.col_lanes
    }

    /// A variant of `matmul_tile` or `matmul_int8_tile` with this tile and an epilogue.
    pub(super) fn cut(&self, variant: Variant, epilogue: Epilogue) -> Variant {
        let parts = epilogue.parts();
        let variant = Variant { registers: self.registers(), ..variant };
        variant
            .set(EPILOGUE, epilogue)
            .set(TALL, self.tall)
            .set(super::matmul::WIDE, self.wide)
            .set(ROW_LANES, self.row_lanes)
            .set(COL_LANES, self.col_lanes)
            .set(slot::PARTS, parts)
            .set(super::matmul_int8::SUMS, self.tall * self.wide)
    }

    /// The tile for matrices with `rows` rows each and `results` results in all.
    #[must_use]
    pub fn choose(profile: &DeviceProfile, epilogue: Epilogue, rows: u32, results: u64) -> Self {
        let large = Self::large(profile.registers);
        let small = Self { tall: 4, wide: 4 * epilogue.parts(), row_lanes: 8, col_lanes: 8 };
        if rows > small.rows() && results >= large.filled(&profile.tuning) { large } else { small }
    }

    /// Minimum number of results, in all parts, for which tiles of this size fill a GPU.
    #[must_use]
    pub fn filled(&self, tuning: &Tuning) -> u64 {
        u64::from(tuning.plain_tiles) * u64::from(self.rows() * self.cols())
    }
}

/// Number of groups of four elements along k in workgroup memory at a time.
const QUADS: u32 = 4;

/// Returns the variant for one storage type of weights, an epilogue and a tile.
#[must_use]
pub fn variant(weights: Format, epilogue: Epilogue, tile: Tile) -> Variant {
    tile.cut(Variant::new(&KERNEL).set_data(WEIGHTS, weights, weights.label()), epilogue)
        .set(super::matmul_coop::X_LOADS, tile.rows() * QUADS / tile.lanes())
        .set(super::matmul_coop::W_QUADS, tile.cols() * QUADS / tile.lanes())
}

/// Returns the variant that stores products with several matrices.
#[must_use]
pub fn several(rows: Rows, weights: Format, tile: Tile) -> Variant {
    rows.apply(variant(weights, Epilogue::Store, tile))
}

/// Returns the number of rows and of columns of one part of a workgroup, for a variant of `matmul_tile` or
/// `matmul_int8_tile`.
pub(super) fn workgroup_tile(variant: &Variant) -> [u32; 2] {
    let tile = Tile::of(variant);
    [tile.rows(), tile.cols() / variant.number(slot::PARTS)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::matmul_int8::CodeTiling;

    /// A lane keeps its results twice in f32, or with codes in f32 and integers.
    #[test]
    fn lanes_with_few_registers_add_up_less() {
        for epilogue in [Epilogue::Store, Epilogue::SiluMul] {
            let of = |registers| {
                let profile = DeviceProfile::H200.registers(registers);
                let exact = Tile::choose(&profile, epilogue, 4096, 1 << 24);
                let coded = Tile::coded(registers);
                let lanes = CodeTiling::for_rows(64, epilogue, 32, registers);
                let parts = epilogue.parts();
                [exact.tall * exact.wide, coded.tall * coded.wide, lanes.rows * lanes.wide * parts]
            };
            assert_eq!(of(Registers::Many), [64, 64, 32]);
            assert_eq!(of(Registers::Few), [32, 16, 8]);
        }
    }

    #[test]
    fn tiles_of_either_division_are_as_large_in_f32() {
        let [many, few] = [Tile::LARGE, Tile::SHARED].map(|tile| [tile.rows(), tile.cols()]);
        assert_eq!(many, few);
    }
}
