//! Weight matrices on the device.

mod contest;
mod experts;
mod kernels;
mod route;
mod several;

pub(crate) use contest::Contender;
pub(crate) use experts::{ExpertMatrices, FewExperts, FewPairs};
use kernels::{Exact, Key};
pub(crate) use kernels::{Kernels, MaxProduct, Precision};
use route::ProductKernels;
pub use route::ProductRoute;
pub(crate) use several::{RoutedPairs, Vectors};

use std::array;
use std::ops::Range;

use attn_kernels::gpu::{Bind, Buf, Pass};
use attn_kernels::{Variant, WINDOW_BYTES};
use smallvec::SmallVec;

use crate::cast::u32_of;
use crate::host_weights::{Columns, Plane, Planes, WeightAllocator};
use crate::kernel::matmul::{self, Epilogue, Loads, MatmulBuffers, MatmulParams};
use crate::kernel::matmul_coop::TilePlan;
use crate::kernel::matmul_int8::{MatmulInt8Buffers, MatmulInt8Params};
use crate::kernel::round_rows::RoundRowsParams;
use crate::kernel::split_sum::{SplitSumBuffers, SplitSumParams};
use crate::pack::{BLOCK, Format, Packed};
use crate::{ModelError, Tensor};

/// A quantised matrix, or several of one shape: experts, and matrices of heads. If they exceed a binding, a single
/// matrix is divided along its columns, and several are divided between two matrices.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    format: Format,
    /// Number of input features.
    width: u32,
    blocks: u32,
    parts: u32,
    shards: Vec<Shard>,
}

/// Columns `first .. first + cols` of each part, of matrices `first_matrix .. first_matrix + matrices`.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    first_matrix: u32,
    matrices: u32,
    pub(crate) first: u32,
    pub(crate) cols: u32,
    pub(crate) quants: Plane<[u32; 4]>,
    pub(crate) scales: Plane<u32>,
}

impl Shard {
    fn buffers(&self, kernels: &Kernels, x: Bind<f32>, y: Bind<f32>) -> MatmulBuffers {
        MatmulBuffers::new(x, kernels.plane(&self.quants), kernels.plane(&self.scales), y)
    }
}

/// Inputs, output and epilogue of a product.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a Buf<f32>,
    pub(crate) rows: u32,
    /// Roundings that the product may apply to `x`.
    pub(crate) precision: Precision,
    pub(crate) y: &'a Buf<f32>,
    /// Distance between rows of y, in f32.
    pub(crate) y_stride: u32,
    /// First column of y.
    pub(crate) y_offset: u32,
    pub(crate) epilogue: Epilogue,
    /// RMS norm of the input, if [`Matrix::norms`] permits it.
    pub(crate) norm: Option<Norm<'a>>,
}

/// An RMS norm: its weights, and the epsilon added to the mean square.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) weight: &'a Buf<f32>,
    pub(crate) eps: f32,
}

/// Number of columns that a thread packs at a time: runs of 1 KiB in every row of quads, which fit into a processor's
/// cache.
const GROUP: usize = 64;

impl Matrix {
    /// One matrix whose columns are the rows of `tensors`, one after the other.
    pub(crate) fn stacked(
        allocator: &WeightAllocator<'_>,
        tensors: &[Tensor<'_>],
    ) -> Result<Self, ModelError> {
        let total = tensors.iter().map(|t| t.shape[0]).sum();
        Self::of_columns(allocator, tensors, 1, total, |packed, cols| {
            let mut start = 0;
            for tensor in tensors {
                let rows = overlap(&cols, start..start + tensor.shape[0]);
                if !rows.is_empty() {
                    let first = rows.start - cols.start;
                    packed.fill(tensor, rows.start - start..rows.end - start, first);
                }
                start += tensor.shape[0];
            }
        })
    }

    /// Loads two matrices of one shape whose columns one kernel reads together, such as gate and up. If their types
    /// differ, both are stored in a wider type.
    pub(crate) fn paired(
        allocator: &WeightAllocator<'_>,
        gate: Tensor<'_>,
        up: Tensor<'_>,
    ) -> Result<Self, ModelError> {
        let cols = gate.shape[0];
        let tensors = Tensor::alike([gate, up]);
        Self::of_columns(allocator, &tensors, 2, cols, |packed, cols| {
            for (part, tensor) in tensors.iter().enumerate() {
                packed.fill(tensor, cols.clone(), part * cols.len());
            }
        })
    }

    /// Loads one matrix that has `parts` parts of `cols` columns each, from tensors of one type and width.
    fn of_columns(
        allocator: &WeightAllocator<'_>,
        tensors: &[Tensor<'_>],
        parts: usize,
        cols: usize,
        fill: impl Fn(&mut Packed, Range<usize>) + Sync,
    ) -> Result<Self, ModelError> {
        let first = &tensors[0];
        for tensor in tensors {
            check(tensor, first)?;
        }
        let (name, dtype, width) = (&*first.name, first.dtype, first.shape[1]);
        let columns = Columns { name, dtype, width, parts, cols, group: GROUP };
        Self::load(allocator, &columns, cols, 1, |packed, cols| {
            fill(packed, cols);
            Ok(())
        })
    }

    /// Loads matrices of `cols` columns each, which follow each other in `columns`. Each shard of the result has whole
    /// units of `unit` columns. `fill` packs a range of columns.
    fn load(
        allocator: &WeightAllocator<'_>,
        columns: &Columns<'_>,
        cols: usize,
        unit: usize,
        fill: impl Fn(&mut Packed, Range<usize>) -> Result<(), ModelError> + Sync,
    ) -> Result<Self, ModelError> {
        let Columns { dtype, width, parts, cols: total, .. } = *columns;
        let (format, blocks) = (Format::from(dtype), width.div_ceil(BLOCK));
        let max = usize::try_from(allocator.max_plane_bytes()).unwrap_or(usize::MAX);
        let unit_bytes = format.column_bytes(blocks) * parts * unit;
        let shard_cols = unit * (max / unit_bytes).clamp(1, total / unit);
        allocator.progress().begin_matrix(columns.size(total));
        let shards = (0..total).step_by(shard_cols).map(|start| {
            let here = shard_cols.min(total - start);
            let Planes { quants, scales } = Columns { cols: here, ..*columns }
                .upload(allocator, |packed, group| fill(packed, start + group.start..start + group.end))?;
            Ok(Shard {
                first_matrix: u32_of(start / cols),
                matrices: u32_of(here.div_ceil(cols)),
                first: u32_of(start % cols),
                cols: u32_of(here.min(cols)),
                quants,
                scales,
            })
        });
        let shards = shards.collect::<Result<_, ModelError>>()?;
        Ok(Self { format, width: u32_of(width), blocks: u32_of(blocks), parts: u32_of(parts), shards })
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Returns the number of matrices.
    fn count(&self) -> u32 {
        self.shards.iter().map(|shard| shard.first_matrix + shard.matrices).max().unwrap_or(0)
    }

    /// Returns the variant of a kernel that reads these weights.
    pub(crate) fn reading(&self, variant: Variant) -> Variant {
        if self.shards[0].quants.is_image() { matmul::from_images(variant) } else { variant }
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Records `y = x W`, or another epilogue of it.
    pub(crate) fn multiply(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        product: &Product<'_>,
    ) -> Result<(), ModelError> {
        self.multiply_by(kernels, pass, product, self.route(kernels, product.rows, product.precision))
    }

    /// Records a product by the kernels of a route.
    fn multiply_by(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        product: &Product<'_>,
        route: ProductKernels,
    ) -> Result<(), ModelError> {
        match route {
            ProductKernels::Exact(exact) => self.exact(kernels, pass, product, exact),
            route @ (ProductKernels::Codes(_) | ProductKernels::CodesTile) => {
                kernels.quantize(pass, product, self.blocks, self.width)?;
                self.by_codes(kernels, pass, product, route)
            }
            ProductKernels::Coop => self.by_matrices(kernels, pass, product),
        }
    }

    /// Returns an epilogue with the matrix's number of parts.
    pub(crate) fn epilogue(&self) -> Epilogue {
        if self.parts == 2 { Epilogue::SiluMul } else { Epilogue::Store }
    }

    /// Returns the f32 kernel for `rows` rows of each matrix.
    fn exact_kernel(&self, kernels: &Kernels, rows: u32) -> Exact {
        let shape = [rows, self.shards[0].cols, self.blocks];
        kernels.exact(self.format, shape, self.epilogue(), self.count())
    }

    fn exact(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        product: &Product<'_>,
        exact: Exact,
    ) -> Result<(), ModelError> {
        let (format, epilogue, blocks) = (self.format, product.epilogue, self.blocks);
        let norm = product.norm.is_some();
        let (exact, window_rows) = exact.windowed(product.rows, self.width);
        let key = Key::Exact { format, epilogue, exact, blocks, norm };
        let pipeline = kernels.pipeline_of(key, &self.shards[0].quants)?;
        kernels.beside(pass, self.bytes());
        for shard in &self.shards {
            for first in (0..product.rows).step_by(window_rows as usize) {
                let rows = window_rows.min(product.rows - first);
                let mut params = MatmulParams { rows, ..self.params(product, shard, self.blocks) };
                params.y_offset += first * product.y_stride;
                params.eps = product.norm.map_or(0.0, |norm| norm.eps);
                let norm = product.norm.map(|norm| norm.weight.bind());
                let row = |r: u32| product.x.bind_from((r as usize) * self.width as usize);
                let buffers = MatmulBuffers { norm, ..shard.buffers(kernels, row(first), product.y.bind()) };
                let last = product.rows - 1;
                let buffers = match exact.loads() {
                    Loads::Windows => buffers.rows(array::from_fn(|r| row((first + u32_of(r)).min(last)))),
                    _ => buffers,
                };
                pass.dispatch(&pipeline, &params, buffers);
            }
        }
        Ok(())
    }

    /// Records a product of the rows that [`Kernels::quantize`] has quantised.
    fn by_codes(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        product: &Product<'_>,
        route: ProductKernels,
    ) -> Result<(), ModelError> {
        let (format, epilogue) = (self.format, product.epilogue);
        let key = match route {
            ProductKernels::Codes(tiling) => Key::Codes { format, epilogue, tiling },
            _ => Key::CodesTile { format, epilogue },
        };
        let pipeline = kernels.pipeline_of(key, &self.shards[0].quants)?;
        kernels.beside(pass, self.bytes());
        for shard in &self.shards {
            let params = MatmulInt8Params {
                rows: product.rows,
                cols: shard.cols,
                blocks: self.blocks,
                y_stride: product.y_stride,
                y_offset: product.y_offset + shard.first,
            };
            let buffers = MatmulInt8Buffers {
                x: kernels.scratch.codes.bind(),
                scales: kernels.scratch.scales.bind(),
                wq: kernels.plane(&shard.quants),
                ws: kernels.plane(&shard.scales),
                y: product.y.bind(),
            };
            pass.dispatch(&pipeline, &params, buffers);
        }
        Ok(())
    }

    fn by_matrices(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        product: &Product<'_>,
    ) -> Result<(), ModelError> {
        let Product { rows, precision, epilogue, .. } = *product;
        let (format, blocks) = (self.format, self.blocks);
        let plan = |shard: &Shard| kernels.plan([rows, shard.cols, blocks], epilogue, precision);
        let plans: SmallVec<[TilePlan; 4]> = self.shards.iter().map(plan).collect();
        // Every tile of columns reads the rows. Where they must not depend on others they are always rounded beforehand: devices
        // may round otherwise on the way in.
        let columns = |(shard, plan): (&Shard, &TilePlan)| shard.cols.div_ceil(plan.tile.cols());
        let tiles: u32 = self.shards.iter().zip(&plans).map(columns).sum();
        let read = u64::from(rows) * u64::from(self.width) * u64::from(tiles);
        let read = if precision.invariant { u64::MAX } else { read };
        let eps = product.norm.map_or(0.0, |norm| norm.eps);
        let params = RoundRowsParams { rows, blocks, x_stride: self.width / 4, eps };
        let norm = product.norm.map(|norm| norm.weight);
        let (x, x_stride, activations) = kernels.coop_rows(pass, product.x.bind(), &params, norm, read)?;
        kernels.beside(pass, self.bytes());
        for (shard, plan) in self.shards.iter().zip(plans) {
            let TilePlan { tile, split_blocks } = plan;
            let splits = plan.splits(blocks);
            let whole = MatmulParams { x_stride, ..self.params(product, shard, split_blocks) };
            if splits == 1 {
                let pipeline = kernels.pipeline(Key::Coop { format, epilogue, activations, tile })?;
                pass.dispatch(&pipeline, &whole, shard.buffers(kernels, x.clone(), product.y.bind()));
                continue;
            }
            let partials = kernels.scratch.partials.bind();
            let store = Key::Coop { format, epilogue: Epilogue::Store, activations, tile };
            let pipeline = kernels.pipeline(store)?;
            let params = MatmulParams { y_stride: shard.cols, y_offset: 0, ..whole };
            pass.dispatch(&pipeline, &params, shard.buffers(kernels, x.clone(), partials.clone()));
            let sum = SplitSumParams {
                rows,
                cols: shard.cols,
                splits,
                y_stride: whole.y_stride,
                y_offset: whole.y_offset,
            };
            let pipeline = kernels.pipeline(Key::Sum { epilogue })?;
            let buffers = SplitSumBuffers { partials, y: product.y.bind() };
            pass.dispatch(&pipeline, &sum, buffers);
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let cols = |shard: &Shard| u64::from(shard.cols * self.parts) * u64::from(shard.matrices);
        let cols: u64 = self.shards.iter().map(cols).sum();
        cols * self.format.column_bytes(self.blocks as usize) as u64
    }

    fn params(&self, product: &Product<'_>, shard: &Shard, split_blocks: u32) -> MatmulParams {
        MatmulParams {
            x_stride: self.width / 4,
            y_stride: product.y_stride,
            y_offset: product.y_offset + shard.first,
            split_blocks,
            ..MatmulParams::new([product.rows, shard.cols, self.blocks])
        }
    }
}

/// Divisor of the width of matrices of plain types, whose rows are read in units of sixteen bytes.
const WIDTH_MULTIPLE: usize = 8;

/// Number of f32 that kernels may read after the last row of a product's input: the last block of a row extends into
/// the next row, where weights are zero, and so does a window that begins with the last row.
pub(crate) const SLACK: usize = WINDOW_BYTES as usize / size_of::<f32>();

pub(crate) fn check(tensor: &Tensor<'_>, first: &Tensor<'_>) -> Result<(), ModelError> {
    let name = || tensor.name.to_string();
    if Format::from(tensor.dtype) != Format::from(first.dtype) {
        let (dtype, other) = (tensor.dtype, first.dtype);
        return Err(ModelError::MixedTypes {
            name: name(),
            dtype,
            other_name: first.name.to_string(),
            other,
        });
    }
    let width = tensor.shape[1];
    let multiple = tensor.dtype.block_elems().max(WIDTH_MULTIPLE);
    if width != first.shape[1] || !width.is_multiple_of(multiple) {
        return Err(ModelError::Width { name: name(), width, multiple });
    }
    Ok(())
}

fn overlap(a: &Range<usize>, b: Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}
