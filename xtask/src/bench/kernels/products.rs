//! Products of activations with a quantised matrix, as a layer multiplies them.

use anyhow::Result;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::KvDtype;
use models::Dtype;
use models::kernel::matmul::{Epilogue, MatmulParams};
use models::kernel::matmul_coop::{self, Activations, MAX_PARTIALS, TilePlan};
use models::kernel::matmul_int8::{self, MatmulInt8Params};
use models::kernel::matmul_int8_tile;
use models::kernel::matmul_tile::{self, Tile};
use models::kernel::split_sum::{self, SplitSumParams};
use models::pack::Format;

use super::ceiling::random;
use super::work::Work;

/// A matrix of a layer, with its type.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) width: u32,
    /// Columns of each part.
    pub(super) cols: u32,
    /// Number of parts of a matrix: gate and up are two, which give one result.
    pub(super) parts: u32,
    pub(super) dtype: Dtype,
}

impl Matrix {
    pub(super) fn name(&self) -> String {
        let parts = if self.parts == 2 { "2 x " } else { "" };
        format!("{} x {parts}{}, {}", self.width, self.cols, self.dtype)
    }

    fn blocks(&self) -> u32 {
        self.width / 32
    }

    fn epilogue(&self) -> Epilogue {
        if self.parts == 2 { Epilogue::SiluMul } else { Epilogue::Store }
    }

    fn weight_bytes(&self) -> usize {
        let column = Format::from(self.dtype).column_bytes(self.blocks() as usize);
        column * (self.cols * self.parts) as usize
    }

    /// Quants and scales: any bits are weights of the types that are measured.
    fn planes(&self, gpu: &Gpu) -> Result<[Buf<u32>; 2]> {
        let bytes = self.weight_bytes();
        Ok([random(gpu, KvDtype::Int8, bytes, 2)?, random(gpu, KvDtype::Int8, bytes / 4, 3)?])
    }

    /// Bytes that a product of `rows` rows reads and writes at least, with `x_bytes` for an activation.
    fn bytes(&self, rows: u32, x_bytes: f64) -> f64 {
        let elements = |columns: u32| f64::from(rows) * f64::from(columns);
        self.weight_bytes() as f64 + x_bytes * elements(self.width) + 4.0 * elements(self.cols)
    }

    fn operations(&self, rows: u32) -> f64 {
        2.0 * f64::from(rows) * f64::from(self.width) * f64::from(self.cols * self.parts)
    }
}

/// `rows` rows of f16 times a matrix by cooperative matrices, cut as a decoder cuts it.
pub(super) fn by_matrices(gpu: &Gpu, matrix: &Matrix, rows: u32) -> Result<Work> {
    let Matrix { width, cols, dtype, .. } = *matrix;
    let (format, blocks, epilogue) = (Format::from(dtype), matrix.blocks(), matrix.epilogue());
    let shape = [rows, cols, blocks];
    let plan = TilePlan::fastest(gpu.profile(), shape, epilogue, MAX_PARTIALS);
    let (TilePlan { tile, split_blocks }, splits) = (plan, plan.splits(blocks));
    let x = random(gpu, KvDtype::F16, (rows * width) as usize, 1)?;
    let [quants, scales] = matrix.planes(gpu)?;
    let y = gpu.buffer::<f32>("y", (rows * cols) as usize)?;
    let partials =
        gpu.buffer::<f32>("partials", if splits > 1 { (splits * rows * cols) as usize } else { 1 })?;
    let params = MatmulParams { split_blocks, ..MatmulParams::new(shape) };
    let grid = matmul_coop::grid(tile, [rows, cols], splits);
    let out: Bound = if splits > 1 { (&partials).into() } else { (&y).into() };
    let product = Work::new("matmul_coop", "coop", format!("{rows} rows, {}", matrix.name()))
        .costs(matrix.bytes(rows, 2.0), matrix.operations(rows))
        .dispatch(
            matmul_coop::variant(format, epilogue, Activations::F16, tile),
            &params,
            [(&x).into(), (&quants).into(), (&scales).into(), out],
            grid,
        );
    if splits == 1 {
        return Ok(product);
    }
    let sum = SplitSumParams { rows, cols, splits, y_stride: cols, y_offset: 0 };
    Ok(product.dispatch(
        split_sum::variant(epilogue),
        &sum,
        [Bound::from(&partials), (&y).into()],
        split_sum::grid(&sum),
    ))
}

/// `rows` rows of f32 times a matrix through workgroup memory.
pub(super) fn in_f32(gpu: &Gpu, matrix: &Matrix, rows: u32) -> Result<Work> {
    let x = random(gpu, KvDtype::F32, (rows * matrix.width) as usize, 1)?;
    let [quants, scales] = matrix.planes(gpu)?;
    let y = gpu.buffer::<f32>("y", (rows * matrix.cols) as usize)?;
    let format = Format::from(matrix.dtype);
    let results = u64::from(rows) * u64::from(matrix.cols * matrix.parts);
    let tile = Tile::choose(gpu.profile(), matrix.epilogue(), rows, results);
    Ok(Work::new("matmul_tile", "baseline", format!("{rows} rows, {}", matrix.name()))
        .costs(matrix.bytes(rows, 4.0), matrix.operations(rows))
        .dispatch(
            matmul_tile::variant(format, matrix.epilogue(), tile),
            &MatmulParams::new([rows, matrix.cols, matrix.blocks()]),
            [(&x).into(), (&quants).into(), (&scales).into(), (&y).into()],
            tile.grid(matrix.epilogue(), rows, matrix.cols),
        ))
}

/// `rows` rows of codes of 8 bits times a matrix through workgroup memory.
pub(super) fn by_codes(gpu: &Gpu, matrix: &Matrix, rows: u32) -> Result<Work> {
    let (epilogue, blocks) = (matrix.epilogue(), matrix.blocks());
    let x = random(gpu, KvDtype::Int8, (rows * matrix.width) as usize, 1)?;
    let x_scales = random(gpu, KvDtype::F32, (rows * blocks * 2) as usize, 4)?;
    let [quants, scales] = matrix.planes(gpu)?;
    let y = gpu.buffer::<f32>("y", (rows * matrix.cols) as usize)?;
    let params = MatmulInt8Params { rows, cols: matrix.cols, blocks, y_stride: matrix.cols, y_offset: 0 };
    let slices = matmul_int8::slices(epilogue, gpu.limits().max_compute_invocations_per_workgroup);
    let format = Format::from(matrix.dtype);
    let tile = Tile::coded(gpu.profile().registers);
    Ok(Work::new("matmul_int8_tile", "baseline", format!("{rows} rows, {}", matrix.name()))
        .costs(matrix.bytes(rows, 1.25), matrix.operations(rows))
        .dispatch(
            matmul_int8_tile::variant(format, epilogue, slices, tile),
            &params,
            [(&x).into(), (&x_scales).into(), (&quants).into(), (&scales).into(), (&y).into()],
            tile.grid(epilogue, rows, matrix.cols),
        ))
}
