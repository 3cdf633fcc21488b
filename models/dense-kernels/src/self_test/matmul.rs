//! Cases of the kernels that read packed weights, and of related ones: matmuls, codes of activations, `embed`.

use crate::kernel::matmul_coop::Activations;
use crate::kernel::quantize_rows::Input;
use attn_kernels::cpu::Tolerance;
use attn_kernels::kernel::KvDtype;
use attn_kernels::self_test::layer::floats;
use attn_kernels::self_test::{Case, Size, Spec, filled};
use attn_kernels::{Variant, slot};
use bytemuck::Pod;
use half::f16;

use super::products::{GATED, SUM, dtype, dtypes, halves, whole_blocks};
use super::tensors;
use crate::cast::u32_of;
use crate::cpu::matmul_int8::{Codes, matmul_int8 as cpu_matmul_int8};
use crate::kernel::embed::EmbedParams;
use crate::kernel::matmul::{self, Epilogue, Loads, MatmulParams};
use crate::kernel::matmul_coop::{self, CoopTile, TilePlan};
use crate::kernel::matmul_int8::MatmulInt8Params;
use crate::kernel::matmul_tile::Tile;
use crate::kernel::quantize_rows::{self, QuantizeRowsParams};
use crate::kernel::rms_norm::RmsNormParams;
use crate::kernel::round_rows::RoundRowsParams;
use crate::kernel::split_sum::SplitSumParams;
use crate::pack::{BLOCK, Packed};
use crate::{Dtype, Tensor, cpu};

/// Tolerance of f32 sums of 2,048 products. Products have size 1/3 and sums size 15; the tolerance is the rounding
/// error of such a sum.
const LANES: Tolerance = Tolerance { abs: 3e-5, rel: 1e-5 };
/// Tolerance of the product of two sums as in `LANES`, one of which passes through `exp`.
const LANES_GATED: Tolerance = Tolerance { abs: 5e-4, rel: 1e-4 };
/// Tolerance of sums of 512 products of size 1/3, whose factors are rounded to f16. Relative errors of 2^-12 add up
/// at random.
const COOP: Tolerance = Tolerance { abs: 3e-2, rel: 1e-3 };
/// Tolerance of the product of two sums as in `COOP`, of size 13, one of which passes through `exp`.
const COOP_GATED: Tolerance = Tolerance { abs: 0.5, rel: 1e-2 };

/// A storage type that the variant's weights module reads and whose blocks fill `blocks` blocks of 32 elements.
fn dtype_of(variant: &Variant, spec: &Spec, blocks: u32) -> Dtype {
    let fills = |dtype: &Dtype| (blocks as usize * BLOCK).is_multiple_of(dtype.block_elems());
    let all: Vec<Dtype> = dtypes(variant).filter(fills).collect();
    spec.one_of(all[0], &all)
}

fn epilogue(variant: &Variant) -> Epilogue {
    variant.get(matmul::EPILOGUE).unwrap_or(Epilogue::Store)
}

fn loads(variant: &Variant) -> Loads {
    variant.get(matmul::ACTIVATIONS).flatten().unwrap_or(Loads::Uniform)
}

/// Returns the rows, columns and blocks of a product: those of the spec, or at most the given numbers, for which the
/// tolerances hold.
fn sizes(variant: &Variant, spec: &Spec, [rows, cols, blocks]: [u32; 3]) -> [u32; 3] {
    if let Some(shape) = spec.product() {
        return shape;
    }
    [spec.number(rows, 1..=rows), spec.number(cols, 1..=cols), whole_blocks(variant, spec, blocks)]
}

/// Activations of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    F32,
    F16,
    /// Codes of 8 bits, with two scales a block.
    Codes,
}

/// A product of random numbers that is only timed, since any bits are valid weights. It writes the results of
/// `splits` splits.
fn timed(variant: &Variant, params: &impl Pod, size: &Size, given: Given, splits: u32) -> Case {
    let &Size { rows, cols, width, .. } = size;
    let (format, parts) = (filled(variant, matmul::WEIGHTS), filled(variant, slot::PARTS));
    let blocks = width.div_ceil(u32_of(BLOCK));
    let [quads, scales] = [format.quads(blocks as usize), format.scale_words(blocks as usize)].map(u32_of);
    let x_bytes = match given {
        Given::F32 => 4.0,
        Given::F16 => 2.0,
        Given::Codes => 1.0 + 8.0 / BLOCK as f64,
    };
    let [rows_f, cols_f, width_f] = [rows, cols, width].map(f64::from);
    let weights = f64::from(cols * parts) * format.column_bytes(blocks as usize) as f64;
    let bytes = weights + rows_f * (x_bytes * width_f + 4.0 * cols_f);
    let windows = loads(variant) == Loads::Windows;
    let case = Case::new("a product", variant, params)
        .costs(bytes, 2.0 * rows_f * width_f * f64::from(cols * parts));
    let case = match given {
        Given::F32 if windows => case.floats_of(width),
        Given::F32 => case.floats_of(rows * width),
        Given::F16 => case.random(KvDtype::F16, (rows * width / 2) as usize),
        Given::Codes => case.words_of(rows * width / 4).floats_of(2 * rows * blocks),
    };
    let case = case.words_of(4 * quads * cols * parts).words_of((scales * cols * parts).max(1));
    let case = case.floats_of(splits * rows * cols);
    let others = if windows { 1..u32_of(matmul::WINDOWS) } else { 0..0 };
    let case = others.fold(case, |case, _| case.floats_of(width));
    if variant.get(matmul::ACTIVATIONS) == Some(None) { case.floats_of(width) } else { case }
}

/// Numbers of rows, columns and blocks of a product that is timed.
fn timed_shape(size: &Size) -> [u32; 3] {
    [size.rows, size.cols, size.width.div_ceil(u32_of(BLOCK))]
}

/// One product: padded rows of x and y, y filled with the addends of `Add`.
struct Product {
    params: MatmulParams,
    epilogue: Epilogue,
    x: Vec<f32>,
    y: Vec<f32>,
    parts: Vec<Tensor<'static>>,
}

impl Product {
    fn new(variant: &Variant, spec: &Spec, [rows, cols, blocks]: [u32; 3]) -> Self {
        let (epilogue, dtype) = (epilogue(variant), dtype_of(variant, spec, blocks));
        let y_offset = spec.number(8, 0..=8);
        let (x_stride, y_stride) =
            (blocks * 8 + spec.number(1, 0..=3), y_offset + cols + spec.number(4, 0..=4));
        let params = MatmulParams {
            x_stride,
            y_stride,
            y_offset,
            eps: 1e-5,
            ..MatmulParams::new([rows, cols, blocks])
        };
        let part = |seed| tensors::random(dtype, cols as usize, blocks as usize * BLOCK, spec.seed(seed));
        Self {
            params,
            epilogue,
            x: spec.floats((rows * x_stride * 4) as usize, 1),
            y: spec.floats((rows * y_stride) as usize, 2),
            parts: (3..3 + u64::from(filled(variant, slot::PARTS))).map(part).collect(),
        }
    }

    fn case(&self, what: &'static str, variant: &Variant, tolerance: Tolerance) -> Case {
        let packed = self.packed();
        let normed = (variant.get(matmul::ACTIVATIONS) == Some(None)).then(|| self.norm());
        let (x, weight) = normed.as_ref().map_or((&self.x, None), |(x, weight)| (x, Some(weight)));
        let mut want = self.y.clone();
        cpu::matmul::matmul(&self.params, self.epilogue, x, &self.parts, &mut want);
        let case = Case::new(what, variant, &self.params);
        let windows = loads(variant) == Loads::Windows;
        let case = match variant.get(matmul_coop::ACTIVATIONS) {
            Some(Activations::F16) => case.binding(&halves(&self.x)),
            _ if windows => case.binding(self.row(0)),
            _ => case.binding(&self.x),
        };
        let case = case.binding(&packed.quants).binding(&packed.scales).updated(&self.y, tolerance, &want);
        let others = if windows { 1..u32_of(matmul::WINDOWS) } else { 0..0 };
        let case = others.fold(case, |case, row| case.binding(self.row(row)));
        match weight {
            Some(weight) => case.binding(weight),
            None => case,
        }
    }

    /// Returns row `row` of x, or the last row if x has fewer rows.
    fn row(&self, row: u32) -> &[f32] {
        let stride = self.params.x_stride as usize * 4;
        &self.x[row.min(self.params.rows - 1) as usize * stride..][..stride]
    }

    /// The weights, all parts in one matrix.
    fn packed(&self) -> Packed {
        let (cols, width) = (self.params.cols as usize, self.params.blocks as usize * BLOCK);
        let mut packed = Packed::new(self.parts[0].dtype, width, cols * self.parts.len());
        for (i, part) in self.parts.iter().enumerate() {
            packed.fill(part, 0..cols, i * cols);
        }
        packed
    }

    /// Returns the rows after the norm that the kernel applies to its input, and the weight of that norm.
    fn norm(&self) -> (Vec<f32>, Vec<f32>) {
        let MatmulParams { rows, blocks, eps, .. } = self.params;
        let (width, stride) = (blocks as usize * BLOCK, self.params.x_stride as usize * 4);
        let weight = floats(width, 7);
        let params = RmsNormParams { rows: 1, width: blocks * 32, eps, first: 0 };
        let mut normed = self.x.clone();
        for row in 0..rows as usize {
            let x = &self.x[row * stride..][..width];
            let out = &mut normed[row * stride..][..width];
            cpu::rms_norm::rms_norm(&params, x, None, &weight, out);
        }
        (normed, weight)
    }
}

/// Cases of rounding rows. With a norm all magnitudes are powers of two, so that neither side rounds.
pub(crate) fn round_rows(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let normed = filled(variant, quantize_rows::NORM) == Input::Normed;
    let (rows, blocks) = (spec.rows(3, 1..=9), spec.named(|size| size.width / 32, 9, 1..=20));
    let x_stride = blocks * 8 + spec.number(1, 0..=3);
    let params = RoundRowsParams { rows, blocks, x_stride, eps: 0.0 };
    let (width, len) = (blocks as usize * BLOCK, (rows * params.x_stride * 4) as usize);
    let power = |i: usize| if i.is_multiple_of(3) { -4.0 } else { 4.0 };
    let x: Vec<f32> = if normed { (0..len).map(power).collect() } else { spec.floats(len, 1) };
    let weight: Option<Vec<f32>> =
        normed.then(|| (0..width).map(|i| [0.5, 2.0, -1.0, 0.25, 8.0][i % 5]).collect());
    let want = cpu::round_rows::round_rows(&params, &x, weight.as_deref());
    let want: Vec<f32> = want.into_iter().map(f16::to_f32).collect();
    let case = Case::new("rows with a stride", variant, &params).binding(&x);
    let case = case.words(&vec![0u32; want.len() / 2], &halves(&want));
    vec![match &weight {
        Some(weight) => case.binding(weight),
        None => case,
    }]
}

pub(crate) fn matmul(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let tile_rows = filled(variant, slot::ROWS);
    if variant.get(matmul::ROWS).is_some() {
        return vec![super::moe::several(variant, spec, tile_rows, LANES)];
    }
    if let Some(size) = spec.size() {
        return vec![timed(variant, &MatmulParams::new(timed_shape(size)), size, Given::F32, 1)];
    }
    // A window holds all rows; of windows of a row there are as many as a tile has rows.
    let (rows, blocks) = match loads(variant) {
        Loads::Uniform | Loads::Broadcast => (2 * tile_rows + 1, 64),
        Loads::Window => (2 * tile_rows + 1, 16),
        Loads::Windows => (tile_rows - 1, 64),
    };
    let product = Product::new(variant, spec, sizes(variant, spec, [rows, 75, blocks]));
    let is_normed = variant.get(matmul::ACTIVATIONS) == Some(None);
    let tolerance = if is_normed { product.tolerance() } else { product.lanes_tolerance() };
    vec![product.case("rows and columns beyond a tile", variant, tolerance)]
}

pub(crate) fn matmul_tile(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let tile = Tile::of(variant);
    if variant.get(matmul::ROWS).is_some() {
        return vec![super::moe::several(variant, spec, tile.rows(), LANES)];
    }
    if let Some(size) = spec.size() {
        return vec![timed(variant, &MatmulParams::new(timed_shape(size)), size, Given::F32, 1)];
    }
    let shape = sizes(variant, spec, [tile.rows() + 11, tile.cols() + 11, 40]);
    let product = Product::new(variant, spec, shape);
    vec![product.case("rows and columns beyond a tile", variant, product.lanes_tolerance())]
}

impl Product {
    /// A case of a kernel that takes activations as codes, with rows and columns beyond a tile.
    fn coded(&self, variant: &Variant, tolerance: Tolerance) -> Case {
        let MatmulParams { rows, cols, blocks, y_stride, y_offset, .. } = self.params;
        let quantize = QuantizeRowsParams { rows, blocks, x_stride: self.params.x_stride, eps: 0.0 };
        let (codes, scales) = cpu::quantize_rows::quantize_rows(&quantize, &self.x);
        let params = MatmulInt8Params { rows, cols, blocks, y_stride, y_offset };
        let packed = self.packed();
        let mut want = self.y.clone();
        let dense = MatmulParams { x_stride: blocks * 8, ..self.params };
        cpu_matmul_int8(
            &dense,
            self.epilogue,
            Codes { codes: &codes, scales: &scales },
            &self.parts,
            &mut want,
        );
        let words: &[u32] = bytemuck::cast_slice(&codes);
        Case::new("rows and columns beyond a tile", variant, &params)
            .binding(words)
            .binding(&scales)
            .binding(&packed.quants)
            .binding(&packed.scales)
            .updated(&self.y, tolerance, &want)
    }

    fn coop_tolerance(&self) -> Tolerance {
        if self.parts.len() == 2 { COOP_GATED } else { COOP }
    }

    fn lanes_tolerance(&self) -> Tolerance {
        if self.parts.len() == 2 { LANES_GATED } else { LANES }
    }

    fn tolerance(&self) -> Tolerance {
        if self.parts.len() == 2 { GATED } else { SUM }
    }
}

pub(crate) fn matmul_int8(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed_codes(variant, size)];
    }
    let tile_rows = filled(variant, slot::ROWS);
    let product = Product::new(variant, spec, sizes(variant, spec, [2 * tile_rows + 1, 75, 72]));
    vec![product.coded(variant, product.tolerance())]
}

/// A product of codes that is only timed.
fn timed_codes(variant: &Variant, size: &Size) -> Case {
    let [rows, cols, blocks] = timed_shape(size);
    let params = MatmulInt8Params { rows, cols, blocks, y_stride: cols, y_offset: 0 };
    timed(variant, &params, size, Given::Codes, 1)
}

pub(crate) fn matmul_int8_tile(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let tile = Tile::of(variant);
    if let Some(size) = spec.size() {
        return vec![timed_codes(variant, size)];
    }
    let shape = sizes(variant, spec, [tile.rows() + 11, tile.cols() + 11, 40]);
    let product = Product::new(variant, spec, shape);
    vec![product.coded(variant, product.tolerance())]
}

/// Zeroes the numbers of a block that lie in the middle between two codes: the last bits of a quotient are the driver's choice,
/// and decide which one such a number becomes.
fn leave_out_middles(block: &mut [f32]) {
    let largest = block.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    for v in block {
        let quotient = *v * (127.0 / largest);
        if (quotient - quotient.floor() - 0.5).abs() < 1e-3 {
            *v = 0.0;
        }
    }
}

/// Cases of quantising rows, whose codes are equal. With a norm, codes could differ by one where the norm's rounding
/// differs, so that case has one block per row, of numbers that need no rounding.
pub(crate) fn quantize_rows(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let normed = filled(variant, quantize_rows::NORM) == Input::Normed;
    let rows = spec.rows(3, 1..=9);
    let blocks = if normed { 1 } else { spec.named(|size| size.width / 32, 300, 1..=300) };
    let x_stride = blocks * 8 + spec.number(1, 0..=3);
    let params = QuantizeRowsParams { rows, blocks, x_stride, eps: 0.0 };
    let len = (rows * params.x_stride * 4) as usize;
    // All of one magnitude: the norm makes them one, and their codes 127.
    let x: Vec<f32> = if normed {
        (0..len).map(|i| if i % 3 == 0 { -2.0 } else { 2.0 }).collect()
    } else {
        let mut x = spec.floats(len, 1);
        let rows = x.chunks_exact_mut(4 * x_stride as usize);
        rows.flat_map(|row| row.as_chunks_mut::<BLOCK>().0).for_each(|block| leave_out_middles(block));
        x
    };
    let made: Vec<f32> = if normed { x.iter().map(|v| v / 2.0).collect() } else { x.clone() };
    let (codes, scales) = cpu::quantize_rows::quantize_rows(&params, &made);
    let case = Case::new("rows with a stride", variant, &params)
        .binding(&x)
        .words(&vec![0u32; codes.len() / 4], bytemuck::cast_slice(&codes))
        .output(SUM, scales.as_flattened());
    vec![if normed { case.binding(&vec![1.0f32; blocks as usize * BLOCK]) } else { case }]
}

pub(crate) fn split_sum(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let [rows, cols, blocks] = timed_shape(size);
        let splits = blocks.div_ceil(size.partition);
        let params = SplitSumParams { rows, cols, splits, y_stride: cols, y_offset: 0 };
        let (partials, sums) = (splits * rows * cols, rows * cols);
        let case = Case::new("sums of splits", variant, &params);
        return vec![case.costs(4.0 * f64::from(partials + sums), 0.0).floats_of(partials).floats_of(sums)];
    }
    let (rows, cols) = (spec.number(3, 1..=9), spec.number(70, 1..=300));
    let (splits, y_offset) = (spec.number(5, 1..=16), spec.number(4, 0..=8));
    let y_stride = y_offset + cols + spec.number(6, 0..=6);
    let params = SplitSumParams { rows, cols, splits, y_stride, y_offset };
    let partials = spec.floats((splits * rows * cols) as usize, 1);
    let y = spec.floats((rows * y_stride) as usize, 2);
    let mut want = y.clone();
    cpu::split_sum::split_sum(&params, epilogue(variant), &partials, &mut want);
    let case = Case::new("five splits", variant, &params);
    vec![case.binding(&partials).updated(&y, SUM, &want)]
}

pub(crate) fn matmul_coop(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let tile = CoopTile::of(variant);
    if variant.get(matmul::ROWS).is_some() {
        return vec![super::moe::several(variant, spec, tile.rows(), COOP)];
    }
    if let Some(size) = spec.size() {
        let shape @ [.., blocks] = timed_shape(size);
        let plan = TilePlan { tile, split_blocks: size.partition };
        let params = MatmulParams { split_blocks: plan.split_blocks, ..MatmulParams::new(shape) };
        let (splits, given) = (plan.splits(blocks), filled(variant, matmul_coop::ACTIVATIONS));
        let given = if given == Activations::F16 { Given::F16 } else { Given::F32 };
        return vec![timed(variant, &params, size, given, splits)];
    }
    let usual = [tile.rows() + 13, tile.cols() + 76, 17];
    // Blocks that do not fill the last stage, nor the last of the splits that a workgroup may own.
    let mut product = Product::new(variant, spec, sizes(variant, spec, usual));
    if tile.all_splits {
        product.params.split_blocks = 5;
    }
    vec![product.case("rows, columns and blocks beyond a tile", variant, product.coop_tolerance())]
}

/// An embedding that is only timed.
fn timed_embed(variant: &Variant, size: &Size) -> Case {
    let &Size { rows, width, vocab, .. } = size;
    let (format, blocks) = (filled(variant, matmul::WEIGHTS), width as usize / BLOCK);
    let [quads, scales] = [format.quads(blocks), format.scale_words(blocks)].map(u32_of);
    let tokens: Vec<u32> = (0..rows).map(|row| row.wrapping_mul(0x9e37_79b9) % vocab).collect();
    let params = EmbedParams { rows, first: 0, cols: vocab, width, scale: 1.0 };
    Case::new("tokens", variant, &params)
        .costs(f64::from(rows) * (format.column_bytes(blocks) as f64 + 4.0 * f64::from(width)), 0.0)
        .binding(&tokens)
        .words_of(4 * quads * vocab)
        .words_of((scales * vocab).max(1))
        .floats_of(rows * width)
}

/// Cases of the embedding. Every product of a scale and a code is exact in f32, except for Q6_K's, which both sides
/// round once, so that results are equal to the bit.
pub(crate) fn embed(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed_embed(variant, size)];
    }
    // Plain types need not fill their last block.
    let (width, row) = if dtype(variant).block_elems() == 1 { (504, 504) } else { (512, 512) };
    let (vocab, dtype) = (37, dtype_of(variant, spec, 16));
    let matrix = tensors::random(dtype, vocab, width, spec.seed(1));
    let tokens = [0, 36, 5, 5, 12, 35, 1].map(|token| spec.number(token, 0..=36));
    // A shard: tokens 5 to 35.
    let params = EmbedParams { rows: 7, first: 5, cols: 31, width: row, scale: 1.5 };
    let mut packed = Packed::new(matrix.dtype, width, 31);
    packed.fill(&matrix, 5..36, 0);
    let mut want = vec![f32::NAN; tokens.len() * width];
    cpu::embed::embed(&params, &tokens, &matrix, &mut want);
    let case = Case::new("tokens of a shard and others", variant, &params)
        .binding(&tokens)
        .binding(&packed.quants)
        .binding(&packed.scales)
        .output(Tolerance::EXACT, &want);
    vec![case]
}
