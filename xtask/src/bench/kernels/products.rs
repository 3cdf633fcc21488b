//! Products of activations with a quantised matrix, as a layer multiplies them.

use anyhow::Result;
use attn_kernels::gpu::{Bound, Gpu};
use attn_kernels::kernel::KvDtype;
use models::Dtype;
use models::kernel::matmul::{Epilogue, MatmulParams};
use models::kernel::matmul_coop::{self, Activations, MAX_PARTIALS, Plan};
use models::kernel::split_sum::{self, SplitSumParams};
use models::pack::{BLOCK, Format};

use super::ceiling::random;
use super::work::Work;

/// A matrix of a layer, with its type.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) width: u32,
    /// Columns of each part.
    pub(super) cols: u32,
    /// Gate and up are two parts, of which one result comes.
    pub(super) parts: u32,
    pub(super) dtype: Dtype,
}

impl Matrix {
    pub(super) fn name(&self) -> String {
        let parts = if self.parts == 2 { "2 x " } else { "" };
        format!("{} x {parts}{}, {}", self.width, self.cols, self.dtype)
    }
}

/// `rows` rows of f16 times a matrix by cooperative matrices, cut as a decoder cuts it.
pub(super) fn by_matrices(gpu: &Gpu, matrix: &Matrix, rows: u32) -> Result<Work> {
    let Matrix { width, cols, parts, dtype } = *matrix;
    let (format, blocks) = (Format::from(dtype), width / u32::try_from(BLOCK)?);
    let epilogue = if parts == 2 { Epilogue::SiluMul } else { Epilogue::Store };
    let shape = [rows, cols, blocks];
    let memory = gpu.limits().max_compute_workgroup_storage_size;
    let plan = Plan::fastest(shape, epilogue, memory, MAX_PARTIALS);
    let (Plan { tile, split_blocks }, splits) = (plan, plan.splits(blocks));
    let x = random(gpu, KvDtype::F16, (rows * width) as usize, 1)?;
    // Any bits are weights of this type.
    let weights = format.column_bytes(blocks as usize) * (cols * parts) as usize;
    let quants = random(gpu, KvDtype::Int8, weights, 2)?;
    let scales = random(gpu, KvDtype::Int8, weights / 4, 3)?;
    let y = gpu.buffer::<f32>("y", (rows * cols) as usize)?;
    let partials =
        gpu.buffer::<f32>("partials", if splits > 1 { (splits * rows * cols) as usize } else { 1 })?;
    let params = MatmulParams { split_blocks, ..MatmulParams::new(shape) };
    let operations = 2.0 * f64::from(rows) * f64::from(width) * f64::from(cols * parts);
    let bytes = weights as f64 + 2.0 * f64::from(rows * width) + 4.0 * f64::from(rows * cols);
    let grid = matmul_coop::grid(tile, [rows, cols], splits);
    let out: Bound = if splits > 1 { (&partials).into() } else { (&y).into() };
    let product = Work::new("matmul_coop", "coop", format!("{rows} rows, {}", matrix.name()))
        .costs(bytes, operations)
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
        split_sum::grid(rows, cols),
    ))
}
