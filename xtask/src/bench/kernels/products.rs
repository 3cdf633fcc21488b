//! Products of activations with a quantised matrix, as a layer multiplies them.

use anyhow::Result;
use attn_kernels::gpu::Gpu;
use attn_kernels::self_test::Size;
use models::Dtype;
use models::kernel::matmul::Epilogue;
use models::kernel::matmul_coop::{self, Activations, MAX_PARTIALS, TilePlan};
use models::kernel::matmul_tile::{self, Tile};
use models::kernel::{matmul_int8, matmul_int8_tile, split_sum};
use models::pack::Format;

use super::work::Work;

/// A matrix of a layer, with its type.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) width: u32,
    /// Number of columns of each part.
    pub(super) cols: u32,
    /// Number of parts: two for the matrices gate and up, whose products give one result.
    pub(super) parts: u32,
    pub(super) dtype: Dtype,
}

/// A product of `size`, whose matrix is in `format`.
#[derive(Clone)]
pub(super) struct Product {
    size: Size,
    format: Format,
    epilogue: Epilogue,
    name: String,
}

impl Matrix {
    pub(super) fn name(&self) -> String {
        let parts = if self.parts == 2 { "2 x " } else { "" };
        format!("{} x {parts}{}, {}", self.width, self.cols, self.dtype)
    }

    /// The product with `rows` rows. `any` gives the sizes on which products do not depend.
    pub(super) fn product(&self, rows: u32, any: Size) -> Product {
        let Self { width, cols, parts, dtype } = *self;
        Product {
            size: Size { rows, width, cols, ..any },
            format: Format::from(dtype),
            epilogue: if parts == 2 { Epilogue::SiluMul } else { Epilogue::Store },
            name: format!("{rows} rows, {}", self.name()),
        }
    }
}

impl Product {
    /// A product in f16 with cooperative matrices, divided as a decoder divides it.
    pub(super) fn by_matrices(&self, gpu: &Gpu) -> Result<Work> {
        let Self { size, format, epilogue, name } = self;
        let blocks = size.width / 32;
        let plan = TilePlan::fastest(gpu.profile(), [size.rows, size.cols, blocks], *epilogue, MAX_PARTIALS);
        let size = Size { partition: plan.split_blocks, ..*size };
        let variant = matmul_coop::variant(*format, *epilogue, Activations::F16, plan.tile);
        let product = Work::of(gpu, "matmul_coop", &variant, size, name)?;
        if plan.splits(blocks) == 1 {
            return Ok(product);
        }
        let partials = product.renamed("y", "partials");
        Ok(product.followed(Work::sharing(
            gpu,
            "split_sum",
            &split_sum::variant(*epilogue),
            size,
            "",
            &partials,
        )?))
    }

    /// A product in f32 through workgroup memory.
    pub(super) fn in_f32(&self, gpu: &Gpu) -> Result<Work> {
        let Self { size, format, epilogue, name } = self;
        let results = u64::from(size.rows) * u64::from(size.cols * epilogue.parts());
        let tile = Tile::choose(gpu.profile(), *epilogue, size.rows, results);
        let variant = matmul_tile::variant(*format, *epilogue, tile);
        Work::of(gpu, "matmul_tile", &variant, *size, name)
    }

    /// A product of codes of 8 bits through workgroup memory.
    pub(super) fn by_codes(&self, gpu: &Gpu) -> Result<Work> {
        let Self { size, format, epilogue, name } = self;
        let slices = matmul_int8::slices(*epilogue, gpu.limits().max_compute_invocations_per_workgroup);
        let tile = Tile::coded(gpu.profile().registers);
        let variant = matmul_int8_tile::variant(*format, *epilogue, slices, tile);
        Work::of(gpu, "matmul_int8_tile", &variant, *size, name)
    }
}
