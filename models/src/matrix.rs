//! Weight matrices on the device.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use smallvec::{SmallVec, smallvec};

use crate::kernel::matmul::{self, Epilogue, MatmulParams, Rows, Tiling};
use crate::kernel::matmul_coop::{self, Tile};
use crate::pack::{BLOCK, Format, Packed};
use crate::{ModelError, Tensor};

/// A quantised matrix, cut along its columns where one binding cannot hold it.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    format: Format,
    /// Input features.
    width: u32,
    blocks: u32,
    parts: u32,
    shards: Vec<Shard>,
}

#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// First column, of each part.
    pub(crate) first: u32,
    /// Columns of each part.
    pub(crate) cols: u32,
    pub(crate) quants: Buf<[u32; 4]>,
    pub(crate) scales: Buf<u32>,
}

/// Where a product goes.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a Buf<f32>,
    pub(crate) rows: u32,
    /// Rows from this one on go through cooperative matrices; `rows` where none does.
    pub(crate) coop_from: u32,
    pub(crate) y: &'a Buf<f32>,
    /// f32 from row to row of y.
    pub(crate) y_stride: u32,
    /// First column of y.
    pub(crate) y_offset: u32,
    pub(crate) epilogue: Epilogue,
    /// Weight and epsilon of an RMS norm on the way in, where [`Matrix::norms`] says that it can be.
    pub(crate) norm: Option<(&'a Buf<f32>, f32)>,
}

impl Matrix {
    /// One matrix whose columns are the rows of `tensors`, one after the other.
    pub(crate) fn stacked(gpu: &Gpu, tensors: &[Tensor<'_>]) -> Result<Self, ModelError> {
        let total = tensors.iter().map(|t| t.shape[0]).sum();
        Self::load(gpu, tensors, 1, total, |packed, shard| {
            let mut start = 0;
            for tensor in tensors {
                let rows = overlap(&shard, start..start + tensor.shape[0]);
                if !rows.is_empty() {
                    let first = rows.start - shard.start;
                    packed.fill(tensor, rows.start - start..rows.end - start, first);
                }
                start += tensor.shape[0];
            }
        })
    }

    /// Two matrices of one shape whose columns meet in one kernel: gate and up.
    pub(crate) fn paired(gpu: &Gpu, gate: Tensor<'_>, up: Tensor<'_>) -> Result<Self, ModelError> {
        let cols = gate.shape[0];
        let tensors = [gate, up];
        Self::load(gpu, &tensors, 2, cols, |packed, shard| {
            for (part, tensor) in tensors.iter().enumerate() {
                packed.fill(tensor, shard.clone(), part * shard.len());
            }
        })
    }

    fn load(
        gpu: &Gpu,
        tensors: &[Tensor<'_>],
        parts: usize,
        cols: usize,
        fill: impl Fn(&mut Packed, Range<usize>),
    ) -> Result<Self, ModelError> {
        let first = &tensors[0];
        let width = first.shape[1];
        for tensor in tensors {
            check(tensor, first)?;
        }
        let format = Format::from(first.dtype);
        let blocks = width.div_ceil(BLOCK);
        let most = usize::try_from(gpu.max_binding_bytes()).unwrap_or(usize::MAX);
        let shard_cols = (most / (format.column_bytes(blocks) * parts)).clamp(1, cols);
        let shards = (0..cols).step_by(shard_cols).map(|start| {
            let range = start..(start + shard_cols).min(cols);
            let mut packed = Packed::new(first.dtype, width, range.len() * parts);
            fill(&mut packed, range.clone());
            Ok(Shard {
                first: u32_of(range.start),
                cols: u32_of(range.len()),
                quants: gpu.upload(&first.name, &packed.quants)?,
                scales: gpu.upload(&first.name, &packed.scales)?,
            })
        });
        let shards = shards.collect::<Result<_, ModelError>>()?;
        Ok(Self { format, width: u32_of(width), blocks: u32_of(blocks), parts: u32_of(parts), shards })
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Records `y = x W`, or what the epilogue makes of it.
    pub(crate) fn multiply(
        &self,
        kernels: &Kernels,
        pass: &mut Pass,
        product: &Product<'_>,
    ) -> Result<(), ModelError> {
        let exact =
            if kernels.binds_rows(self.width, product.y_stride) { product.coop_from } else { product.rows };
        let exact = exact.min(product.rows);
        if exact > 0 {
            let tiling = kernels.tiling(exact, self.parts, self.blocks);
            let key = (self.format, product.epilogue, tiling, self.blocks, product.norm.is_some());
            let pipeline = kernels.matmul(key)?;
            self.dispatch(pass, &pipeline, product, 0..exact, |cols| matmul::grid(tiling, exact, cols));
        }
        let rows = product.rows - exact;
        if rows > 0 {
            let tile = Tile::choose(rows, self.shards[0].cols, product.epilogue);
            let pipeline = kernels.matmul_coop((self.format, product.epilogue, tile))?;
            let grid = |cols| matmul_coop::grid(tile, rows, cols);
            self.dispatch(pass, &pipeline, product, exact..product.rows, grid);
        }
        Ok(())
    }

    fn dispatch(
        &self,
        pass: &mut Pass,
        pipeline: &Arc<Pipeline>,
        product: &Product<'_>,
        rows: Range<u32>,
        grid: impl Fn(u32) -> [u32; 3],
    ) {
        let start = u64::from(rows.start);
        let x = Bind::at(product.x.raw(), start * u64::from(self.width) * 4);
        let y = Bind::at(product.y.raw(), start * u64::from(product.y_stride) * 4);
        for shard in &self.shards {
            let params = MatmulParams {
                rows: rows.end - rows.start,
                cols: shard.cols,
                blocks: self.blocks,
                x_stride: self.width / 4,
                y_stride: product.y_stride,
                y_offset: product.y_offset + shard.first,
                eps: product.norm.map_or(0.0, |(_, eps)| eps),
                x_div: 1,
                matrices: 1,
                first_matrix: 0,
                pad0: 0,
                pad1: 0,
            };
            let mut bindings: SmallVec<[Bind; 5]> =
                smallvec![x.clone(), (&shard.quants).into(), (&shard.scales).into(), y.clone()];
            bindings.extend(product.norm.map(|(weight, _)| weight.into()));
            pass.dispatch(pipeline, &params, &bindings, grid(shard.cols));
        }
    }

    /// Whether a product of `rows` rows can norm them on the way in.
    pub(crate) fn norms(&self, kernels: &Kernels, rows: u32) -> bool {
        // A norm goes over whole blocks.
        self.width == self.blocks * 32 && kernels.tiling(rows, self.parts, self.blocks).norms()
    }
}

/// Rows of plain types are read sixteen bytes at a time.
const WIDTH_MULTIPLE: usize = 8;

/// f32 that a matmul may read past the last row of its input: the last block of a row reaches into the next, where
/// weights are zero.
pub(crate) const SLACK: usize = BLOCK;

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

pub(crate) fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("dimensions of a model fit in 32 bits")
}

/// Compiled matmuls, and how their work is cut on this device.
#[derive(Debug)]
pub(crate) struct Kernels {
    gpu: Arc<Gpu>,
    matmuls: RefCell<Vec<(MatmulKey, Arc<Pipeline>)>>,
    coop: RefCell<Vec<(CoopKey, Arc<Pipeline>)>>,
    several: RefCell<Vec<(SeveralKey, Arc<Pipeline>)>>,
}

impl Kernels {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            matmuls: RefCell::default(),
            coop: RefCell::default(),
            several: RefCell::default(),
        }
    }

    /// Whether rows of these widths can be bound at any row, as products in two parts need.
    fn binds_rows(&self, x_width: u32, y_stride: u32) -> bool {
        let align = self.gpu.limits().min_storage_buffer_offset_alignment;
        [x_width, y_stride].iter().all(|width| (width * 4).is_multiple_of(align))
    }

    pub(crate) fn tiling(&self, rows: u32, parts: u32, blocks: u32) -> Tiling {
        if self.gpu.is_cpu() {
            Tiling::for_cpu(rows, parts, broadcasts(&self.gpu))
        } else {
            Tiling::for_gpu(rows, parts, blocks)
        }
    }

    fn matmul(&self, key: MatmulKey) -> Result<Arc<Pipeline>, ModelError> {
        if let Some((_, pipeline)) = self.matmuls.borrow().iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(pipeline));
        }
        let (format, epilogue, tiling, blocks, normed) = key;
        let norm = normed.then(|| self.gpu.level());
        let variant = matmul::variant(format.module(), epilogue, tiling, blocks, norm);
        let pipeline = self.gpu.pipeline(&variant)?;
        self.matmuls.borrow_mut().push((key, Arc::clone(&pipeline)));
        Ok(pipeline)
    }

    /// The kernel for products with several matrices.
    pub(crate) fn several(&self, key: SeveralKey) -> Result<Arc<Pipeline>, ModelError> {
        if let Some((_, pipeline)) = self.several.borrow().iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(pipeline));
        }
        let (rows, format, tiling, blocks) = key;
        let pipeline = self.gpu.pipeline(&matmul::several(rows, format.module(), tiling, blocks))?;
        self.several.borrow_mut().push((key, Arc::clone(&pipeline)));
        Ok(pipeline)
    }

    fn matmul_coop(&self, key: CoopKey) -> Result<Arc<Pipeline>, ModelError> {
        if let Some((_, pipeline)) = self.coop.borrow().iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(pipeline));
        }
        let (format, epilogue, tile) = key;
        let pipeline = self.gpu.pipeline(&matmul_coop::variant(format.module(), epilogue, tile))?;
        self.coop.borrow_mut().push((key, Arc::clone(&pipeline)));
        Ok(pipeline)
    }
}

/// Rows, format, tiling, blocks along k.
pub(crate) type SeveralKey = (Rows, Format, Tiling, u32);

/// Format, epilogue, tile.
type CoopKey = (Format, Epilogue, Tile);

/// Format, epilogue, tiling, blocks along k, norm in front.
type MatmulKey = (Format, Epilogue, Tiling, u32, bool);

/// Whether eight lanes may load for each other: software drivers with subgroups of at least eight.
pub(crate) fn broadcasts(gpu: &Gpu) -> bool {
    use attn_kernels::gpu::Level;
    gpu.is_cpu() && gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8
}
