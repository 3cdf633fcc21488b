//! Quantised matrix times many rows of f32 through workgroup memory, for GPUs without cooperative matrices and for rows that
//! must keep f32.
//!
//! A result is bitwise that of [`matmul`].

use attn_kernels::profile::{DeviceProfile, Registers, Tuning};
use attn_kernels::{Kernel, Variant};

use super::matmul::{self, Epilogue, Rows};

/// The kernel, with the parameters and bindings of [`matmul`].
pub static KERNEL: Kernel =
    Kernel { name: "matmul_tile", wgsl: include_str!("../../wgsl/matmul_tile.wgsl"), ..matmul::KERNEL };

/// Rows and columns of a workgroup. Results do not depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tile {
    /// Rows of a lane, a multiple of 4.
    pub tall: u32,
    /// Columns of a lane in all parts, 2 or a multiple of 4 in each.
    pub wide: u32,
    /// Lanes along rows.
    pub row_lanes: u32,
    /// Lanes along columns.
    pub col_lanes: u32,
}

impl Tile {
    /// 64 rows and 128 columns: of eight tiles the fastest for 2,048 rows on an H200, in f32 and by codes.
    pub const LARGE: Self = Self { tall: 8, wide: 8, row_lanes: 8, col_lanes: 16 };

    /// [`Tile::LARGE`] by twice the lanes, each with half of the results: what a lane of the other adds up takes 128 registers,
    /// and on an Apple M1 300 to 400 of its values go to memory.
    pub const SHARED: Self = Self { tall: 4, wide: 8, row_lanes: 16, col_lanes: 16 };

    /// 64 rows and 64 columns, for products by codes and lanes with few registers: a device without dot products of bytes has
    /// the bytes in registers of their own.
    pub const CODED: Self = Self { tall: 4, wide: 4, row_lanes: 16, col_lanes: 16 };

    /// 64 rows and 128 columns, as lanes with `registers` share them.
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

    /// Registers of the lanes that it is for; `None` for all.
    fn registers(&self) -> Option<Registers> {
        match *self {
            Self::LARGE => Some(Registers::Many),
            Self::SHARED | Self::CODED => Some(Registers::Few),
            _ => None,
        }
    }

    /// Rows of a workgroup.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.tall * self.row_lanes
    }

    /// Columns of a workgroup, in all parts.
    #[must_use]
    pub fn cols(&self) -> u32 {
        self.wide * self.col_lanes
    }

    fn lanes(&self) -> u32 {
        self.row_lanes * self.col_lanes
    }

    /// A variant of `matmul_tile` or `matmul_int8_tile` with this tile and an epilogue.
    pub(super) fn cut(&self, variant: Variant, epilogue: Epilogue) -> Variant {
        let (module, parts) = epilogue.module();
        let variant = Variant { registers: self.registers(), ..variant };
        variant
            .module("epilogue", module)
            .size("TALL", self.tall)
            .size("WIDE", self.wide)
            .size("ROW_LANES", self.row_lanes)
            .size("COL_LANES", self.col_lanes)
            .size("PARTS", parts)
            .size("SUMS", self.tall * self.wide)
    }

    /// Workgroups for `rows` rows and `cols` columns of one part.
    #[must_use]
    pub fn grid(&self, epilogue: Epilogue, rows: u32, cols: u32) -> [u32; 3] {
        [cols.div_ceil(self.cols() / epilogue.parts()), rows.div_ceil(self.rows()), 1]
    }

    /// The tile for `rows` rows of as many matrices as have `results` results in all.
    #[must_use]
    pub fn choose(profile: &DeviceProfile, epilogue: Epilogue, rows: u32, results: u64) -> Self {
        let large = Self::large(profile.registers);
        let small = Self { tall: 4, wide: 4 * epilogue.parts(), row_lanes: 8, col_lanes: 8 };
        if rows > small.rows() && results >= large.filled(&profile.tuning) { large } else { small }
    }

    /// Results, in all parts, from which on tiles fill a GPU.
    #[must_use]
    pub fn filled(&self, tuning: &Tuning) -> u64 {
        u64::from(tuning.plain_tiles) * u64::from(self.rows() * self.cols())
    }
}

/// Quads of k in workgroup memory at a time.
const QUADS: u32 = 4;

/// The kernel for one storage type of weights, an epilogue and a tile.
#[must_use]
pub fn variant(weights: &'static str, epilogue: Epilogue, tile: Tile) -> Variant {
    tile.cut(Variant::new(&KERNEL).module("weights", weights), epilogue)
        .size("X_LOADS", tile.rows() * QUADS / tile.lanes())
        .size("W_QUADS", tile.cols() * QUADS / tile.lanes())
}

/// The kernel that stores products with several matrices.
#[must_use]
pub fn several(rows: Rows, weights: &'static str, tile: Tile) -> Variant {
    rows.apply(variant(weights, Epilogue::Store, tile))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::matmul_int8::Tiling;

    /// Results of a lane, which it adds up in f32 twice, or by codes in f32 and integers.
    #[test]
    fn lanes_with_few_registers_add_up_less() {
        for epilogue in [Epilogue::Store, Epilogue::SiluMul] {
            let of = |registers| {
                let profile = DeviceProfile::H200.registers(registers);
                let exact = Tile::choose(&profile, epilogue, 4096, 1 << 24);
                let coded = Tile::coded(registers);
                let lanes = Tiling::for_rows(64, epilogue, 32, registers);
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
