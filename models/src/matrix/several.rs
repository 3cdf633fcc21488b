//! Products with several matrices of one shape: experts, and matrices of heads.

use attn_kernels::gpu::{Bind, Buf, Pass};

use super::{Exact, Kernels, Key, Matrix, Precision, Shard, check};
use crate::cast::u32_of;
use crate::host_weights::{Columns, WeightAllocator};
use crate::kernel::matmul::{MatmulBuffers, MatmulParams, Rows};
use crate::kernel::matmul_coop::{Activations, CoopTile};
use crate::kernel::round_rows::RoundRowsParams;
use crate::{ModelError, Tensor};

/// Inputs and outputs of products of vectors.
#[derive(Clone)]
pub(crate) struct Vectors {
    pub(crate) x: Bind<f32>,
    /// Distance between vectors of x in f32, a multiple of 4.
    pub(crate) x_stride: u32,
    pub(crate) y: Bind<f32>,
    /// Distance between vectors of y in f32.
    pub(crate) y_stride: u32,
    /// First column of y.
    pub(crate) y_offset: u32,
}

/// Pairs of a row and a matrix, sorted by `moe_sort`.
pub(crate) struct RoutedPairs<'a> {
    pub(crate) tiles: &'a Buf<[u32; 4]>,
    pub(crate) order: &'a Buf<u32>,
    pub(crate) pairs: u32,
    /// Kernel that determines the tiles into which the pairs are divided.
    pub(crate) route: PairKernel,
    pub(crate) max_tiles: u32,
    /// Number of pairs that share a vector of x.
    pub(crate) x_div: u32,
    /// Number of portions of a step, each of which multiplies by these matrices once.
    pub(crate) portions: u32,
}

/// Kernel of products of pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PairKernel {
    /// f32, with `matmul` or `matmul_tile`.
    Exact(Exact),
    /// f16, with `matmul_coop`.
    Coop(CoopTile),
}

impl PairKernel {
    /// Maximum number of pairs of a tile.
    pub(crate) fn tile_rows(self) -> u32 {
        match self {
            Self::Exact(exact) => exact.rows(),
            Self::Coop(tile) => tile.rows(),
        }
    }
}

impl Matrix {
    /// Loads `count` matrices, where `load(i)` returns the i-th, `[out_features, in_features]`. Each processor loads one at a
    /// time.
    pub(crate) fn several<'t>(
        allocator: &WeightAllocator<'_>,
        count: u32,
        load: impl Fn(u32) -> Result<Tensor<'t>, ModelError> + Sync,
    ) -> Result<Self, ModelError> {
        let first = load(0)?;
        let (name, dtype, cols, width) = (&*first.name, first.dtype, first.shape[0], first.shape[1]);
        let columns = Columns { name, dtype, width, parts: 1, cols: cols * count as usize, group: cols };
        Self::load(allocator, &columns, cols, cols, |packed, group| {
            let tensor = load(u32_of(group.start / cols))?;
            check(&tensor, &first)?;
            packed.fill(&tensor, 0..cols, 0);
            Ok(())
        })
    }

    /// Records the product of each pair's vector with its matrix.
    pub(crate) fn multiply_routed(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        vectors: &Vectors,
        routes: &RoutedPairs<'_>,
    ) -> Result<(), ModelError> {
        let (format, blocks, cols) = (self.format, self.blocks, self.shards[0].cols);
        let (x, x_stride, pipeline) = match routes.route {
            PairKernel::Exact(exact) => {
                let pipeline =
                    kernels.pipeline_of(self.key_of_several(Rows::Routed, exact), &self.shards[0].quants)?;
                (vectors.x.clone(), vectors.x_stride, pipeline)
            }
            PairKernel::Coop(tile) => {
                // Every tile of columns reads the vector of each pair.
                let read =
                    u64::from(routes.pairs) * u64::from(blocks * 32) * u64::from(cols.div_ceil(tile.cols()));
                let (rows, x_stride) = (routes.pairs / routes.x_div, vectors.x_stride / 4);
                let params = RoundRowsParams { rows, blocks, x_stride, eps: 0.0 };
                let (x, quads, activations) =
                    kernels.coop_rows(pass, vectors.x.clone(), &params, None, read)?;
                (x, quads * 4, kernels.pipeline(Key::CoopRouted { format, activations, tile })?)
            }
        };
        let vectors = &Vectors { x, x_stride, ..vectors.clone() };
        kernels.beside(pass, self.bytes() / u64::from(routes.portions));
        for shard in &self.shards {
            let params = MatmulParams {
                x_div: routes.x_div,
                ..self.params_of_several(routes.max_tiles, vectors, shard)
            };
            let (tiles, order) = (Some(routes.tiles.bind()), Some(routes.order.bind()));
            let buffers = MatmulBuffers {
                tiles,
                order,
                ..shard.buffers(kernels, vectors.x.clone(), vectors.y.clone())
            };
            pass.dispatch(&pipeline, &params, buffers);
        }
        Ok(())
    }

    /// Records the products of every row with several matrices: vector `[row, m]` is multiplied by matrix `m`.
    pub(crate) fn multiply_each(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        rows: u32,
        vectors: &Vectors,
    ) -> Result<(), ModelError> {
        let exact = self.exact_kernel(kernels, rows);
        let pipeline = kernels.pipeline_of(self.key_of_several(Rows::Each, exact), &self.shards[0].quants)?;
        kernels.beside(pass, self.bytes());
        for shard in &self.shards {
            let params = MatmulParams { x_div: self.count(), ..self.params_of_several(rows, vectors, shard) };
            let buffers = shard.buffers(kernels, vectors.x.clone(), vectors.y.clone());
            pass.dispatch(&pipeline, &params, buffers);
        }
        Ok(())
    }

    fn key_of_several(&self, rows: Rows, exact: Exact) -> Key {
        Key::Several { rows, format: self.format, exact, blocks: self.blocks }
    }

    fn params_of_several(&self, rows: u32, vectors: &Vectors, shard: &Shard) -> MatmulParams {
        MatmulParams {
            x_stride: vectors.x_stride / 4,
            y_stride: vectors.y_stride,
            y_offset: vectors.y_offset,
            matrices: shard.matrices,
            first_matrix: shard.first_matrix,
            ..MatmulParams::new([rows, shard.cols, self.blocks])
        }
    }

    /// Whether products with cooperative matrices passed the driver's self-test.
    fn takes_routed(&self, kernels: &Kernels, tile: CoopTile) -> bool {
        let format = self.format;
        let key = |activations| Key::CoopRouted { format, activations, tile };
        [Activations::F16, Activations::F32]
            .into_iter()
            .all(|activations| kernels.right(1, |_| key(activations)))
    }

    /// Selects the kernel for products of `pairs` pairs.
    pub(crate) fn pair_kernel(&self, kernels: &Kernels, pairs: u32, precision: Precision) -> PairKernel {
        let rows = pairs.div_ceil(self.count());
        match precision.f16
            && !precision.invariant
            && pairs > self.count() / kernels.profile().tuning.experts_a_pair
            && self.takes_routed(kernels, CoopTile::routed(rows))
        {
            true => PairKernel::Coop(CoopTile::routed(rows)),
            false => PairKernel::Exact(self.exact_kernel(kernels, rows)),
        }
    }
}
