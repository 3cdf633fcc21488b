//! Matrices of random weights, multiplied by given kernels to measure which are faster.

use attn_kernels::gpu::{Buf, Pass};

use super::{Exact, Kernels, Matrix, Precision, Product, ProductKernels, Shard};
use crate::ModelError;
use crate::cast::u32_of;
use crate::host_weights::Plane;
use crate::kernel::matmul::{Epilogue, Tiling};
use crate::kernel::matmul_int8;
use crate::kernel::matmul_tile::Tile;
use crate::pack::{BLOCK, Format};

/// Alternative kernels for products of one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    /// `matmul`
    Lanes,
    /// `matmul_tile` with small tiles, or with large ones.
    Tiles { large: bool },
    /// `matmul_int8`
    CodedLanes,
    /// `matmul_int8_tile`
    CodedTiles,
    /// `matmul_coop`
    Matrices,
}

impl Contender {
    /// Returns the roundings that the kernel applies, for which [`Kernels`] reserve buffers.
    pub(crate) fn precision(self) -> Precision {
        let int8 = matches!(self, Self::CodedLanes | Self::CodedTiles);
        Precision { f16: self == Self::Matrices, int8, invariant: false }
    }
}

impl Matrix {
    /// Returns a matrix of `parts` parts of `cols` columns of `width` elements, from the start of `quants` and `scales`.
    pub(crate) fn of_planes(
        format: Format,
        [width, cols, parts]: [u32; 3],
        quants: &Buf<[u32; 4]>,
        scales: &Buf<u32>,
    ) -> Self {
        let (quants, scales) = (Plane::Device(quants.clone()), Plane::Device(scales.clone()));
        let blocks = width / u32_of(BLOCK);
        let shard = Shard { first_matrix: 0, matrices: 1, first: 0, cols, quants, scales };
        Self { format, width, blocks, parts, shards: vec![shard] }
    }

    /// Records `y = x W` by `contender`.
    pub(crate) fn contend(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        [x, y]: [&Buf<f32>; 2],
        rows: u32,
        contender: Contender,
    ) -> Result<(), ModelError> {
        let epilogue = Epilogue::Store;
        let product = &Product {
            x,
            rows,
            precision: contender.precision(),
            y,
            y_stride: self.shards[0].cols,
            y_offset: 0,
            epilogue,
            norm: None,
        };
        let profile = kernels.profile();
        let route = match contender {
            Contender::Matrices => ProductKernels::Coop,
            Contender::Lanes => ProductKernels::Exact(Exact::Lanes(Tiling::for_gpu(rows, 1, self.blocks))),
            Contender::Tiles { large: true } => {
                ProductKernels::Exact(Exact::Tile(Tile::large(profile.registers)))
            }
            // So few results take small ones.
            Contender::Tiles { large: false } => {
                ProductKernels::Exact(Exact::Tile(Tile::choose(profile, epilogue, rows, 0)))
            }
            Contender::CodedLanes => {
                let slices = matmul_int8::slices(epilogue, profile.workgroup_lanes);
                ProductKernels::Codes(matmul_int8::CodeTiling::for_rows(
                    rows,
                    epilogue,
                    slices,
                    profile.registers,
                ))
            }
            Contender::CodedTiles => ProductKernels::CodesTile,
        };
        self.multiply_by(kernels, pass, product, route)
    }
}
