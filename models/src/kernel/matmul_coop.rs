//! Quantised matrix times many rows with cooperative matrices: `matmul` of the coop level.
//!
//! Bindings, parameters and epilogues are those of [`matmul`]. Activations (which must not exceed
//! 65,504, f16's largest number) and dequantised weights are rounded to f16, sums are f32. Runs where
//! [`Gpu::runs_coop`](attn_kernels::gpu::Gpu::runs_coop) says so; pays from some 32 rows on.

use attn_kernels::{Kernel, Variant};

use super::matmul::{self, Epilogue, MatmulParams};

/// Bindings: x, wq, ws, y.
pub static KERNEL: Kernel = Kernel {
    name: "matmul_coop",
    wgsl: include_str!("../../wgsl/matmul_coop.wgsl"),
    modules: &[super::MODULES],
    params_bytes: size_of::<MatmulParams>(),
    bindings: matmul::KERNEL.bindings,
};

/// How the work is cut: a workgroup owns `rows()` rows and `cols()` columns of each part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tile {
    /// 16 x 16 matrices of a subgroup along rows.
    pub m_tiles: u32,
    /// And along columns, in one part.
    pub n_tiles: u32,
    /// Subgroups along rows.
    pub m_subgroups: u32,
    /// Subgroups along columns.
    pub n_subgroups: u32,
}

impl Tile {
    /// The tile for `rows` rows of a matrix of `cols` columns in each of its parts: the largest that still gives a
    /// big GPU enough workgroups and wastes few columns.
    #[must_use]
    pub fn choose(rows: u32, cols: u32, epilogue: Epilogue) -> Self {
        let tile = |m_tiles, n_tiles, m_subgroups| Self { m_tiles, n_tiles, m_subgroups, n_subgroups: 2 };
        let enough = |tile: Self, workgroups| {
            let covered = cols.div_ceil(tile.cols()) * tile.cols();
            let [x, y, _] = grid(tile, rows, cols);
            x * y >= workgroups && covered - cols <= cols / 12
        };
        let two_parts = epilogue == Epilogue::SiluMul;
        let large = if two_parts { tile(2, 4, 4) } else { tile(4, 4, 2) };
        // Two parts are as many columns as one of twice the width.
        let (wide, square) = (tile(2, 4, 2), tile(2, 2, 2));
        if cols >= 4096 && enough(large, 400) {
            large
        } else if !two_parts && enough(wide, 200) {
            wide
        } else if enough(square, 132) || rows >= 2048 {
            square
        } else {
            tile(1, 2, 2)
        }
    }

    /// Rows of a workgroup.
    #[must_use]
    pub fn rows(self) -> u32 {
        16 * self.m_tiles * self.m_subgroups
    }

    /// Columns of a workgroup, in each part.
    #[must_use]
    pub fn cols(self) -> u32 {
        16 * self.n_tiles * self.n_subgroups
    }

    fn lanes(self) -> u32 {
        32 * self.m_subgroups * self.n_subgroups
    }
}

/// The kernel for one storage type, epilogue and tile.
///
/// # Panics
/// When the lanes of a workgroup cannot share the tile's blocks of weights and quads of activations evenly.
#[must_use]
pub fn variant(weights: &'static str, epilogue: Epilogue, tile: Tile) -> Variant {
    let (module, parts) = epilogue.module();
    let (lanes, quads) = (tile.lanes(), 8 * tile.cols() * parts);
    let w_loads = (tile.cols() * parts / lanes).max(1);
    let even = quads.is_multiple_of(w_loads * lanes) && (8 * tile.rows()).is_multiple_of(lanes);
    assert!(even, "{tile:?}: {quads} quads of weights, {} of activations, {lanes} lanes", 8 * tile.rows());
    Variant::new(&KERNEL)
        .module("weights", weights)
        .module("epilogue", module)
        .size("PARTS", parts)
        .size("M_TILES", tile.m_tiles)
        .size("N_TILES", tile.n_tiles)
        .size("M_SUBGROUPS", tile.m_subgroups)
        .size("N_SUBGROUPS", tile.n_subgroups)
        .size("X_LOADS", 8 * tile.rows() / lanes)
        .size("W_LOADS", w_loads)
        .size("W_QUADS", quads / (w_loads * lanes))
        .size("ALL_N_TILES", tile.n_tiles * parts)
}

/// Workgroups for `rows` rows and `cols` columns of one part.
#[must_use]
pub fn grid(tile: Tile, rows: u32, cols: u32) -> [u32; 3] {
    [cols.div_ceil(tile.cols()), rows.div_ceil(tile.rows()), 1]
}
