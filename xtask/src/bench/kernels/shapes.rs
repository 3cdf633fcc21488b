//! Products and attention over a grid of shapes, as a decoder runs them, and the limit of each.

use anyhow::Result;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::KvDtype;
use models::tuning::{LayerProduct, LayerProducts, ProductRoute};
use models::{DecoderOptions, Dtype};

use super::attention::{self, Heads, Step};
use super::work::{Bench, Cost, Timed};

/// Shapes of the grid.
pub(super) struct Shapes {
    hidden: &'static [u32],
    ffn: &'static [u32],
    vocab: &'static [u32],
    rows: &'static [u32],
    head_dims: &'static [u32],
    kv_heads: &'static [u32],
    /// Decode steps: the number of sequences, and the number of tokens of each.
    steps: &'static [[u32; 2]],
    prompts: &'static [u32],
}

const FULL: Shapes = Shapes {
    hidden: &[1024, 2048, 3072, 4096, 5120, 8192],
    ffn: &[2816, 8192, 14_336, 28_672],
    vocab: &[32_000, 128_256, 262_144],
    rows: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048],
    head_dims: &[64, 96, 128, 256],
    kv_heads: &[1, 2, 4, 8, 16, 32],
    steps: &[[1, 1024], [1, 32_768], [8, 8192], [64, 2048]],
    prompts: &[512, 8192],
};
const QUICK: Shapes = Shapes {
    hidden: &[1024, 3072, 5120],
    ffn: &[2816, 14_336],
    vocab: &[128_256],
    rows: &[1, 8, 64, 512],
    head_dims: &[64, 96, 128, 256],
    kv_heads: &[2, 8],
    steps: &[[1, 8192], [64, 2048]],
    prompts: &[2048],
};
/// Shapes that a driver that runs on the CPU does in seconds.
const SOFTWARE: Shapes = Shapes {
    hidden: &[256, 512],
    ffn: &[768],
    vocab: &[4096],
    rows: &[1, 4, 16],
    head_dims: &[64, 128],
    kv_heads: &[2],
    steps: &[[1, 512], [4, 256]],
    prompts: &[64],
};

/// Maximum number of rows of a product with the matrix of a vocabulary, because a step samples tokens for few rows
/// only.
const DRAWN: u32 = 64;

/// Number of query heads of attention.
const HEADS: u32 = 32;

/// Maximum number of bytes of keys and values of a step.
const MAX_KV: f64 = 8e9;

impl Shapes {
    pub(super) fn new(gpu: &Gpu, quick: bool) -> &'static Self {
        if gpu.is_cpu() {
            &SOFTWARE
        } else if quick {
            &QUICK
        } else {
            &FULL
        }
    }

    /// Pairs of a weight type and a hidden size. The products of a pair share their data.
    pub(super) fn layers(&self) -> impl Iterator<Item = (Dtype, u32)> {
        let dtypes = [Dtype::Q4_K, Dtype::Q8_0, Dtype::F16];
        dtypes.into_iter().flat_map(|dtype| self.hidden.iter().map(move |hidden| (dtype, *hidden)))
    }

    /// Heads that attend.
    pub(super) fn heads(&self) -> impl Iterator<Item = Heads> {
        let heads = |dim: u32| self.kv_heads.iter().map(move |kv_heads| (dim, *kv_heads));
        let all = self.head_dims.iter().flat_map(move |dim| heads(*dim));
        all.map(|(dim, kv_heads)| Heads::new(HEADS.max(kv_heads), kv_heads, dim, KvDtype::F16))
    }

    /// Products of a model of this hidden size, with every number of rows.
    fn products(&self, hidden: u32) -> Vec<LayerProduct> {
        let matrix = |width, cols, parts| LayerProduct { rows: 0, width, cols, parts };
        let mut matrices = vec![matrix(hidden, hidden, 1)];
        matrices.extend(self.ffn.iter().flat_map(|ffn| [matrix(hidden, *ffn, 2), matrix(*ffn, hidden, 1)]));
        matrices.extend(self.vocab.iter().map(|vocab| matrix(hidden, *vocab, 1)));
        let few = |rows: &u32, cols: u32| *rows <= DRAWN || !self.vocab.contains(&cols);
        matrices
            .into_iter()
            .flat_map(|product| {
                let rows = self.rows.iter().filter(move |rows| few(rows, product.cols));
                rows.map(move |rows| LayerProduct { rows: *rows, ..product })
            })
            .collect()
    }

    /// Times the products of a hidden size.
    pub(super) fn time_products(&self, bench: &Bench, dtype: Dtype, hidden: u32) -> Result<Vec<Timed>> {
        let products = self.products(hidden);
        let most = self.rows.iter().copied().max().unwrap_or(1);
        let mut layers = LayerProducts::new(bench.gpu, dtype, &products, &DecoderOptions::new(1, most))?;
        products.into_iter().map(|product| time_product(bench, &mut layers, dtype, product)).collect()
    }

    /// Times the attention of heads: steps of decode, and prompts.
    pub(super) fn time_attention(&self, bench: &Bench, heads: &Heads) -> Result<Vec<Timed>> {
        let mut all = Vec::new();
        for step in self.steps {
            let tokens = step.iter().map(|n| f64::from(*n)).product::<f64>();
            if tokens * heads.token_bytes() <= MAX_KV {
                all.extend(bench.alone(Step::new(heads, *step, 1.0).dense(bench.gpu)?)?);
            }
            bench.gpu.forget_bind_groups();
        }
        for len in self.prompts {
            all.extend(bench.alone(attention::prefill(bench.gpu, heads, *len, None)?)?);
            bench.gpu.forget_bind_groups();
        }
        Ok(all)
    }
}

fn time_product(
    bench: &Bench,
    layers: &mut LayerProducts,
    dtype: Dtype,
    product: LayerProduct,
) -> Result<Timed> {
    let LayerProduct { rows, width, cols, parts } = product;
    // Its kernels are compiled before.
    layers.record(&mut Pass::new("products"), product)?;
    let ProductRoute { level, text: route } = layers.route(product);
    let activations = 4.0 * f64::from(rows) * (f64::from(width) + f64::from(cols));
    let parts = if parts == 2 { "2 x " } else { "" };
    let cost = Cost {
        kernel: "product".into(),
        level: level.name(),
        shape: format!("{rows} rows, {width} x {parts}{cols}, {dtype}: {route}"),
        bytes: product.weight_bytes(dtype) as f64 + activations,
        operations: product.operations() as f64,
    };
    let mut failed = None;
    let seconds = bench.seconds_of(|pass| {
        failed = layers.record(pass, product).err();
    })?;
    failed.map_or(Ok(()), Err)?;
    Ok(Timed { cost, seconds, dense: None, density: None, recall: None })
}
