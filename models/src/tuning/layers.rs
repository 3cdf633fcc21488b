//! Products of any shape, multiplied as a decoder multiplies them.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::rig::fill;
use crate::cast::u32_of;
use crate::matrix::{Kernels, Matrix, MaxProduct, Product, ProductRoute, SLACK};
use crate::pack::{BLOCK, Format};
use crate::{DecoderOptions, Dtype, ModelError};

/// A product of the rows of a step with a matrix of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayerProduct {
    /// Number of rows of the step.
    pub rows: u32,
    /// Number of input features, a multiple of 256.
    pub width: u32,
    /// Number of columns of each part.
    pub cols: u32,
    /// Number of parts: gate and up are two, which give one result.
    pub parts: u32,
}

impl LayerProduct {
    /// Bytes of the weights on the device.
    #[must_use]
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        let column = Format::from(dtype).column_bytes(self.blocks());
        column as u64 * u64::from(self.cols * self.parts)
    }

    /// Operations of a product; a multiply-add is two.
    #[must_use]
    pub fn operations(&self) -> u64 {
        2 * u64::from(self.rows) * u64::from(self.width) * u64::from(self.cols * self.parts)
    }

    fn blocks(&self) -> usize {
        (self.width as usize).div_ceil(BLOCK)
    }

    fn columns(&self) -> usize {
        (self.cols * self.parts) as usize
    }
}

/// Random weights on a device, as matrices of any shape, and the kernels by which a decoder multiplies them.
#[derive(Debug)]
pub struct LayerProducts {
    format: Format,
    quants: Buf<[u32; 4]>,
    scales: Buf<u32>,
    x: Buf<f32>,
    y: Buf<f32>,
    kernels: Kernels,
    max: MaxProduct,
}

impl LayerProducts {
    /// Makes weights of `dtype` for the largest of `products`, to be multiplied with the roundings of a decoder of these options.
    ///
    /// # Errors
    /// A device that is lost or out of memory.
    pub fn new(
        gpu: &Arc<Gpu>,
        dtype: Dtype,
        products: &[LayerProduct],
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let format = Format::from(dtype);
        let largest = |of: &dyn Fn(&LayerProduct) -> usize| products.iter().map(of).max().unwrap_or(1).max(1);
        let quads = largest(&|product| format.quads(product.blocks()) * product.columns());
        let scales = largest(&|product| format.scale_words(product.blocks()) * product.columns());
        let elements = largest(&|product| (product.rows * product.width) as usize);
        let results = largest(&|product| (product.rows * product.cols) as usize);
        let [rows, width] =
            [largest(&|product| product.rows as usize), largest(&|product| product.width as usize)]
                .map(u32_of);
        let precision = options.precision(gpu);
        let max =
            MaxProduct { rows, width, normed_width: width, routed_width: width, expert_rows: 0, precision };
        let mut rng = StdRng::seed_from_u64(1);
        let mut half = || u32::from(f16::from_f32(rng.random_range(-1.0..1.0)).to_bits());
        let scales = fill(gpu, scales, || half() << 16 | half())?;
        Ok(Self {
            format,
            quants: fill(gpu, quads, || rng.random())?,
            scales,
            x: fill(gpu, elements + SLACK, || rng.random_range(-1.0..1.0))?,
            y: gpu.buffer("products", results)?,
            kernels: Kernels::new(gpu, max, None)?,
            max,
        })
    }

    /// Returns how a product is multiplied.
    #[must_use]
    pub fn route(&self, product: LayerProduct) -> ProductRoute {
        self.matrix(product).described_route(&self.kernels, product.rows, self.max.precision)
    }

    fn matrix(&self, product: LayerProduct) -> Matrix {
        let LayerProduct { width, cols, parts, .. } = product;
        Matrix::of_planes(self.format, [width, cols, parts], &self.quants, &self.scales)
    }

    /// Records a product.
    ///
    /// # Errors
    /// Those of compiling its kernels.
    pub fn record(&mut self, pass: &mut Pass, product: LayerProduct) -> Result<(), ModelError> {
        let matrix = self.matrix(product);
        let LayerProduct { rows, cols, .. } = product;
        let product = Product {
            x: &self.x,
            rows,
            precision: self.max.precision,
            y: &self.y,
            y_stride: cols,
            y_offset: 0,
            epilogue: matrix.epilogue(),
            norm: None,
        };
        matrix.multiply(&mut self.kernels, pass, &product)
    }
}
