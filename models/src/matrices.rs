//! Several matrices of one shape: experts, and matrices of heads.

use attn_kernels::gpu::{Bind, Buf, Pass};

use crate::cast::u32_of;
use crate::host_weights::{Columns, Plane, Planes, WeightAllocator};
use crate::kernel::matmul::{Epilogue, MatmulBuffers, MatmulParams, Rows};
use crate::kernel::matmul_coop::{self, Activations, Tile};
use crate::kernel::round_rows::RoundRowsParams;
use crate::matrix::{Exact, Kernels, Key, Precision, check};
use crate::pack::{BLOCK, Format};
use crate::{ModelError, Tensor};

/// Matrices of one shape, divided between two matrices if a binding cannot hold all.
#[derive(Clone, Debug)]
pub(crate) struct Matrices {
    format: Format,
    blocks: u32,
    cols: u32,
    count: u32,
    shards: Vec<MatrixShard>,
}

#[derive(Clone, Debug)]
struct MatrixShard {
    first: u32,
    count: u32,
    quants: Plane<[u32; 4]>,
    scales: Plane<u32>,
}

impl MatrixShard {
    fn buffers(&self, kernels: &Kernels, vectors: &Vectors) -> MatmulBuffers {
        let (wq, ws) = (kernels.plane(&self.quants), kernels.plane(&self.scales));
        MatmulBuffers::new(vectors.x.clone(), wq, ws, vectors.y.clone())
    }
}

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
    /// The kernel for whose tiles the pairs are divided.
    pub(crate) route: PairKernel,
    pub(crate) max_tiles: u32,
    /// Number of pairs that share a vector of x.
    pub(crate) x_div: u32,
    /// Number of such products of these matrices in a step.
    pub(crate) portions: u32,
}

/// Kernel of products of pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PairKernel {
    /// f32, with `matmul` or `matmul_tile`.
    Exact(Exact),
    /// f16, with `matmul_coop`.
    Coop(Tile),
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

impl Matrices {
    /// Loads `count` matrices, where `load(i)` returns the i-th, `[out_features, in_features]`. Each processor loads one at a
    /// time.
    pub(crate) fn load<'t>(
        allocator: &WeightAllocator<'_>,
        count: u32,
        load: impl Fn(u32) -> Result<Tensor<'t>, ModelError> + Sync,
    ) -> Result<Self, ModelError> {
        let first = load(0)?;
        let (cols, width) = (first.shape[0], first.shape[1]);
        let (format, blocks) = (Format::from(first.dtype), width.div_ceil(BLOCK));
        let max = usize::try_from(allocator.max_plane_bytes()).unwrap_or(usize::MAX);
        let per_shard = u32_of((max / (format.column_bytes(blocks) * cols)).clamp(1, count as usize));
        let (name, dtype, all) = (&*first.name, first.dtype, cols * count as usize);
        let whole = Columns { name, dtype, width, parts: 1, cols: all, group: cols };
        allocator.progress().begin_matrix(whole.size(all));
        let mut shards = Vec::new();
        for start in (0..count).step_by(per_shard as usize) {
            let here = per_shard.min(count - start);
            let columns = Columns { cols: cols * here as usize, ..whole };
            let Planes { quants, scales } = columns.upload(allocator, |packed, group| {
                let tensor = load(start + u32_of(group.start / cols))?;
                check(&tensor, &first)?;
                packed.fill(&tensor, 0..cols, 0);
                Ok(())
            })?;
            shards.push(MatrixShard { first: start, count: here, quants, scales });
        }
        Ok(Self { format, blocks: u32_of(blocks), cols: u32_of(cols), count, shards })
    }

    /// Records the product of each pair's vector with its matrix.
    pub(crate) fn multiply_routed(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        vectors: &Vectors,
        routes: &RoutedPairs<'_>,
    ) -> Result<(), ModelError> {
        let (format, blocks) = (self.format, self.blocks);
        let (x, x_stride, pipeline, columns) = match routes.route {
            PairKernel::Exact(exact) => {
                let [columns, ..] = exact.grid(Epilogue::Store, 1, self.cols);
                let pipeline = kernels.pipeline_of(self.key(Rows::Routed, exact), &self.shards[0].quants)?;
                (vectors.x.clone(), vectors.x_stride, pipeline, columns)
            }
            PairKernel::Coop(tile) => {
                let [columns, ..] = matmul_coop::grid(tile, [1, self.cols], 1);
                // Every tile of columns reads the vector of each pair.
                let read = u64::from(routes.pairs) * u64::from(blocks * 32) * u64::from(columns);
                let (rows, x_stride) = (routes.pairs / routes.x_div, vectors.x_stride / 4);
                let params = RoundRowsParams { rows, blocks, x_stride, eps: 0.0 };
                let (x, quads, activations) =
                    kernels.coop_rows(pass, vectors.x.clone(), &params, None, read)?;
                (x, quads * 4, kernels.pipeline(Key::CoopRouted { format, activations, tile })?, columns)
            }
        };
        let vectors = &Vectors { x, x_stride, ..vectors.clone() };
        kernels.beside(pass, self.bytes() / u64::from(routes.portions));
        for shard in &self.shards {
            let params = MatmulParams { x_div: routes.x_div, ..self.params(0, vectors, shard) };
            let (tiles, order) = (Some(routes.tiles.bind()), Some(routes.order.bind()));
            let buffers = MatmulBuffers { tiles, order, ..shard.buffers(kernels, vectors) };
            pass.dispatch(&pipeline, &params, buffers, [columns, routes.max_tiles, 1]);
        }
        Ok(())
    }

    /// Records the products of the vectors of every row, `[rows, matrices]`, each with its matrix.
    pub(crate) fn multiply_each(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        rows: u32,
        vectors: &Vectors,
    ) -> Result<(), ModelError> {
        let exact = self.exact(kernels, rows);
        let pipeline = kernels.pipeline_of(self.key(Rows::Each, exact), &self.shards[0].quants)?;
        kernels.beside(pass, self.bytes());
        for shard in &self.shards {
            let params = MatmulParams { x_div: self.count, ..self.params(rows, vectors, shard) };
            let buffers = shard.buffers(kernels, vectors);
            let [columns, row_tiles, _] = exact.grid(Epilogue::Store, rows, self.cols);
            pass.dispatch(&pipeline, &params, buffers, [columns, row_tiles, shard.count]);
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        u64::from(self.count) * u64::from(self.cols) * self.format.column_bytes(self.blocks as usize) as u64
    }

    /// Returns the f32 kernel for `rows` rows of each matrix.
    fn exact(&self, kernels: &Kernels, rows: u32) -> Exact {
        kernels.exact(self.format, [rows, self.cols, self.blocks], Epilogue::Store, self.count)
    }

    fn key(&self, rows: Rows, exact: Exact) -> Key {
        Key::Several { rows, format: self.format, exact, blocks: self.blocks }
    }

    fn params(&self, rows: u32, vectors: &Vectors, shard: &MatrixShard) -> MatmulParams {
        MatmulParams {
            x_stride: vectors.x_stride / 4,
            y_stride: vectors.y_stride,
            y_offset: vectors.y_offset,
            matrices: shard.count,
            first_matrix: shard.first,
            ..MatmulParams::new([rows, self.cols, self.blocks])
        }
    }

    /// Whether products with cooperative matrices passed the driver's self-test.
    fn takes_matrices(&self, kernels: &Kernels, tile: Tile) -> bool {
        let format = self.format;
        let key = |activations| Key::CoopRouted { format, activations, tile };
        [Activations::F16, Activations::F32]
            .into_iter()
            .all(|activations| kernels.right(1, |_| key(activations)))
    }

    /// Selects the kernel for products of `pairs` pairs.
    pub(crate) fn route(&self, kernels: &Kernels, pairs: u32, precision: Precision) -> PairKernel {
        let rows = pairs.div_ceil(self.count);
        match precision.f16
            && !precision.invariant
            && pairs > self.count / kernels.profile().tuning.experts_a_pair
            && self.takes_matrices(kernels, Tile::routed(rows))
        {
            true => PairKernel::Coop(Tile::routed(rows)),
            false => PairKernel::Exact(self.exact(kernels, rows)),
        }
    }
}
