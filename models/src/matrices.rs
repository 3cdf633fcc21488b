//! Several matrices of one shape, side by side: experts, and matrices of heads.

use attn_kernels::gpu::{Bind, Buf, Pass};

use crate::cast::u32_of;
use crate::host_weights::{Home, Plane};
use crate::kernel::matmul::{self, MatmulBuffers, MatmulParams, Rows, Tiling};
use crate::matrix::{Kernels, Key, check};
use crate::pack::{BLOCK, Columns, Format, Planes};
use crate::{ModelError, Tensor};

/// Matrices of one shape, cut between two of them where one binding cannot hold all.
#[derive(Clone, Debug)]
pub(crate) struct Matrices {
    format: Format,
    blocks: u32,
    cols: u32,
    count: u32,
    shards: Vec<Shard>,
}

#[derive(Clone, Debug)]
struct Shard {
    first: u32,
    count: u32,
    quants: Plane<[u32; 4]>,
    scales: Plane<u32>,
}

impl Shard {
    fn buffers(&self, kernels: &Kernels, vectors: &Vectors) -> MatmulBuffers {
        let (wq, ws) = (kernels.plane(&self.quants), kernels.plane(&self.scales));
        MatmulBuffers::new(vectors.x.clone(), wq, ws, vectors.y.clone())
    }
}

/// Sources of vectors and destinations of products.
#[derive(Clone)]
pub(crate) struct Vectors {
    pub(crate) x: Bind<f32>,
    /// f32 from vector to vector of x, a multiple of 4.
    pub(crate) x_stride: u32,
    pub(crate) y: Bind<f32>,
    /// f32 from vector to vector of y.
    pub(crate) y_stride: u32,
    /// First column of y.
    pub(crate) y_offset: u32,
}

/// Pairs of a row and a matrix, as `moe_sort` left them.
pub(crate) struct Routes<'a> {
    pub(crate) tiles: &'a Buf<[u32; 4]>,
    pub(crate) order: &'a Buf<u32>,
    /// Rows that go to a matrix on average.
    pub(crate) rows_per_matrix: u32,
    /// Maximum number of rows of a tile.
    pub(crate) tile_rows: u32,
    pub(crate) max_tiles: u32,
    /// Pairs that share a vector of x.
    pub(crate) x_div: u32,
    /// Products of a step that go through the matrices like this one.
    pub(crate) portions: u32,
}

impl Matrices {
    /// `count` matrices, `load(i)` the i-th, `[out_features, in_features]`; one is asked for by each processor at a time.
    pub(crate) fn load<'t>(
        home: &Home<'_>,
        count: u32,
        load: impl Fn(u32) -> Result<Tensor<'t>, ModelError> + Sync,
    ) -> Result<Self, ModelError> {
        let first = load(0)?;
        let (cols, width) = (first.shape[0], first.shape[1]);
        let (format, blocks) = (Format::from(first.dtype), width.div_ceil(BLOCK));
        let most = usize::try_from(home.max_plane_bytes()).unwrap_or(usize::MAX);
        let per_shard = u32_of((most / (format.column_bytes(blocks) * cols)).clamp(1, count as usize));
        let (name, dtype, all) = (&*first.name, first.dtype, cols * count as usize);
        let whole = Columns { name, dtype, width, parts: 1, cols: all, group: cols };
        home.progress().begin_matrix(whole.size(all));
        let mut shards = Vec::new();
        for start in (0..count).step_by(per_shard as usize) {
            let here = per_shard.min(count - start);
            let columns = Columns { cols: cols * here as usize, ..whole };
            let Planes { quants, scales } = columns.upload(home, |packed, group| {
                let tensor = load(start + u32_of(group.start / cols))?;
                check(&tensor, &first)?;
                packed.fill(&tensor, 0..cols, 0);
                Ok(())
            })?;
            shards.push(Shard { first: start, count: here, quants, scales });
        }
        Ok(Self { format, blocks: u32_of(blocks), cols: u32_of(cols), count, shards })
    }

    /// Records the product of each pair's vector with its matrix.
    pub(crate) fn multiply_routed(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        vectors: &Vectors,
        routes: &Routes<'_>,
    ) -> Result<(), ModelError> {
        let tiling = kernels.tiling(routes.rows_per_matrix, 1, self.blocks);
        let pipeline = kernels.pipeline(self.key(Rows::Routed, tiling))?;
        kernels.beside(pass, self.bytes() / u64::from(routes.portions));
        for shard in &self.shards {
            let params = MatmulParams { x_div: routes.x_div, ..self.params(0, vectors, shard) };
            let (tiles, order) = (Some(routes.tiles.bind()), Some(routes.order.bind()));
            let buffers = MatmulBuffers { tiles, order, ..shard.buffers(kernels, vectors) };
            let [columns, ..] = matmul::grid(tiling, 1, self.cols);
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
        let tiling = kernels.tiling(rows, 1, self.blocks);
        let pipeline = kernels.pipeline(self.key(Rows::Each, tiling))?;
        kernels.beside(pass, self.bytes());
        for shard in &self.shards {
            let params = MatmulParams { x_div: self.count, ..self.params(rows, vectors, shard) };
            let buffers = shard.buffers(kernels, vectors);
            let [columns, row_tiles, _] = matmul::grid(tiling, rows, self.cols);
            pass.dispatch(&pipeline, &params, buffers, [columns, row_tiles, shard.count]);
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        u64::from(self.count) * u64::from(self.cols) * self.format.column_bytes(self.blocks as usize) as u64
    }

    fn key(&self, rows: Rows, tiling: Tiling) -> Key {
        Key::Several { rows, format: self.format, tiling, blocks: self.blocks }
    }

    fn params(&self, rows: u32, vectors: &Vectors, shard: &Shard) -> MatmulParams {
        MatmulParams {
            x_stride: vectors.x_stride / 4,
            y_stride: vectors.y_stride,
            y_offset: vectors.y_offset,
            matrices: shard.count,
            first_matrix: shard.first,
            ..MatmulParams::new([rows, self.cols, self.blocks])
        }
    }

    /// Rows of a tile where `rows` rows go to each matrix.
    pub(crate) fn tile_rows(&self, kernels: &Kernels, rows: u32) -> u32 {
        kernels.tiling(rows, 1, self.blocks).rows
    }
}
