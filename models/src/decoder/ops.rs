//! The recording context, and the operations that parts of a layer share.

mod keys;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::rows::Angle;

use super::activations::Activations;
use super::attention_groups::AttentionGroups;
use super::batch::{Batch, GroupRows};
use super::keys::{KeySource, OffloadPlan};
use super::splits::Splits;
use crate::cast::u32_of;
use crate::kernel::bias::{self, BiasBuffers, BiasParams};
use crate::kernel::embed::{self, EmbedBuffers, EmbedParams};
use crate::kernel::log_prob;
use crate::kernel::matmul::{self, Epilogue};
use crate::kernel::norm_heads::{self, NormHeadsBuffers, NormHeadsParams};
use crate::kernel::rms_norm::{self, NormForm, RmsNormBuffers, RmsNormParams};
use crate::kernel::rope::{RopeBuffers, RopeParams};
use crate::kernel::softcap::{self, SoftcapBuffers, SoftcapParams};
use crate::matrix::{Kernels, Matrix, Norm, Precision, Product, Vectors};
use crate::{DecoderConfig, KvPool, ModelError};

/// Context in which a part records a step: the pass, and everything that parts share. A part owns its weights, kernels and
/// buffers; whatever else it uses is here.
pub(super) struct Ctx<'a> {
    pub(super) pass: &'a mut Pass,
    pub(super) gpu: &'a Gpu,
    pub(super) config: &'a DecoderConfig,
    pub(super) ops: &'a mut Ops,
    pub(super) act: &'a Activations,
    /// Rows that attention and MLP read: the residual stream, or a mix of several.
    pub(super) block_in: &'a Buf<f32>,
    /// Rows that attention and MLP add to: the residual stream, or zeros if there are several.
    pub(super) block_out: &'a Buf<f32>,
    pub(super) batch: &'a Batch,
    /// Token of each row.
    pub(super) tokens: &'a Buf<u32>,
    pub(super) attn_groups: &'a AttentionGroups,
    pub(super) splits: &'a Splits,
    pub(super) kv: &'a KvPool,
    pub(super) keys: &'a mut KeySource,
    pub(super) offload_plan: &'a OffloadPlan,
}

/// Kernels that all parts use.
#[derive(Debug)]
pub(super) struct Ops {
    pub(super) kernels: Kernels,
    /// Roundings that products may apply to activations.
    pub(super) precision: Precision,
    /// Kernel of the token embedding; `None` if the first layers of the model are on another device.
    embed: Option<Arc<Pipeline>>,
    norm: Arc<Pipeline>,
    norm_add: Arc<Pipeline>,
    norm_gather: Arc<Pipeline>,
    norm_heads: Arc<Pipeline>,
    bias: Arc<Pipeline>,
    bias_add: Arc<Pipeline>,
    pub(super) log_prob: Arc<Pipeline>,
    softcap: Arc<Pipeline>,
}

impl Ops {
    pub(super) fn new(
        gpu: &Gpu,
        kernels: Kernels,
        precision: Precision,
        embedding: Option<&Matrix>,
    ) -> Result<Self, ModelError> {
        // Lanes of a software driver run one after the other.
        let lanes = if gpu.profile().software { 64 } else { matmul::NORM_LANES };
        let norm = |form| gpu.pipeline(&gpu.profile().best(|level| rms_norm::variant(form, lanes, level)));
        let norm_heads = gpu.profile().best(|level| norm_heads::variant(norm_heads::Norm::Rms, level));
        Ok(Self {
            kernels,
            precision,
            embed: embedding
                .map(|matrix| gpu.pipeline(&matrix.reading(embed::variant(matrix.format()))))
                .transpose()?,
            norm: norm(NormForm::Store)?,
            norm_add: norm(NormForm::Add)?,
            norm_gather: norm(NormForm::Gather)?,
            norm_heads: gpu.pipeline(&norm_heads)?,
            bias: gpu.pipeline(&bias::variant(bias::BiasForm::Store))?,
            bias_add: gpu.pipeline(&bias::variant(bias::BiasForm::Add))?,
            log_prob: gpu.pipeline(&log_prob::variant())?,
            softcap: gpu.pipeline(&softcap::variant())?,
        })
    }
}

/// Equal slices of every row, one for each head.
#[derive(Clone, Copy)]
pub(super) struct HeadSlices {
    /// Number of slices.
    pub(super) heads: u32,
    /// Length of a slice, in f32.
    pub(super) width: u32,
    /// Length of a row, in f32.
    pub(super) stride: u32,
    /// Start of the first slice in a row, in f32.
    pub(super) first: u32,
}

impl HeadSlices {
    /// Slices that cover the whole row.
    pub(super) fn of(heads: u32, width: u32) -> Self {
        Self { heads, width, stride: heads * width, first: 0 }
    }
}

/// RMS norm of whole rows.
struct RmsNorm<'a> {
    form: NormForm,
    weight: &'a Buf<f32>,
    /// Range of rows, or of entries of the list of rows to gather.
    rows: Range<u32>,
    /// Rows to gather, with [`NormForm::Gather`].
    gather: Option<Bind<u32>>,
    x: &'a Buf<f32>,
    out: &'a Buf<f32>,
}

/// Rotation of heads of every row.
#[derive(Clone, Copy)]
pub(super) struct Rotation<'a> {
    /// (cos, sin) of each pair of each row, `[rows, pairs]`.
    pub(super) cos_sin: &'a Buf<Angle>,
    pub(super) pairs: u32,
    /// Whether the rotation goes backwards.
    pub(super) back: bool,
    pub(super) heads: u32,
    /// Length of a row, in f32.
    pub(super) stride: u32,
    /// First dimension of a head that is rotated.
    pub(super) first: u32,
}

impl<'a> Ctx<'a> {
    /// Number of rows of the step.
    pub(super) fn rows(&self) -> u32 {
        self.batch.rows
    }

    /// Returns the rows of a layer's attention group.
    pub(super) fn group_rows(&self, layer: usize) -> &'a GroupRows {
        &self.batch.attn_groups[self.attn_groups.of_layers[layer]]
    }

    /// Begins the step of the stream that copies weights from the host, if there is one.
    pub(super) fn begin_weights(&mut self) {
        if let Some(stream) = &mut self.ops.kernels.stream {
            stream.begin_step();
        }
    }

    /// Records what has to happen before a layer's weights are used.
    pub(super) fn enter_weights(&mut self, layer: usize) {
        if let Some(stream) = &mut self.ops.kernels.stream {
            stream.enter(self.pass, layer);
        }
    }

    /// Records the embeddings of the step's tokens into the residual. Without an embedding, it records nothing: the
    /// layers on the device before have written the residual.
    pub(super) fn embed(&mut self, embedding: Option<&Matrix>) {
        let Some((embedding, pipeline)) = embedding.zip(self.ops.embed.as_ref()) else { return };
        let (rows, width) = (self.rows(), self.config.hidden_size);
        for shard in embedding.shards() {
            let (first, cols, scale) = (shard.first, shard.cols, self.config.embedding_scale);
            let params = EmbedParams { rows, first, cols, width, scale };
            let buffers = EmbedBuffers {
                tokens: self.tokens.bind(),
                wq: self.ops.kernels.plane(&shard.quants),
                ws: self.ops.kernels.plane(&shard.scales),
                out: self.act.residual.bind(),
            };
            self.pass.dispatch(pipeline, &params, buffers);
        }
    }

    /// Returns a product for all rows of `x`. Its result is added to `y`, whose rows have `stride` f32.
    pub(super) fn product<'b>(&self, x: &'b Buf<f32>, y: &'b Buf<f32>, stride: u32) -> Product<'b> {
        let (rows, precision, epilogue) = (self.rows(), self.ops.precision, Epilogue::Add);
        Product { x, rows, precision, y, y_stride: stride, y_offset: 0, epilogue, norm: None }
    }

    /// Records `y += x W` of all rows; `y` has rows of `stride` f32.
    pub(super) fn add_product(
        &mut self,
        matrix: &Matrix,
        x: &Buf<f32>,
        y: &Buf<f32>,
        stride: u32,
    ) -> Result<(), ModelError> {
        let product = self.product(x, y, stride);
        self.matmul(matrix, &product)
    }

    /// Records the output projection of attention or MLP, and adds it to the residual, after a norm if there is one.
    pub(super) fn add_block(
        &mut self,
        matrix: &Matrix,
        x: &Buf<f32>,
        norm: Option<&Buf<f32>>,
    ) -> Result<(), ModelError> {
        let (act, width) = (self.act, self.config.hidden_size);
        let Some(weight) = norm else { return self.add_product(matrix, x, self.block_out, width) };
        self.store_product(matrix, x, &act.normed, width)?;
        let rows = 0..self.rows();
        self.rms_norm(RmsNorm {
            form: NormForm::Add,
            weight,
            rows,
            gather: None,
            x: &act.normed,
            out: self.block_out,
        });
        Ok(())
    }

    /// Records `y = x W` of all rows.
    pub(super) fn store_product(
        &mut self,
        matrix: &Matrix,
        x: &Buf<f32>,
        y: &Buf<f32>,
        stride: u32,
    ) -> Result<(), ModelError> {
        let product = Product { epilogue: Epilogue::Store, ..self.product(x, y, stride) };
        self.matmul(matrix, &product)
    }

    /// Records `y = x W` of all rows in f32, for results that depend on small differences.
    pub(super) fn exact_product(
        &mut self,
        matrix: &Matrix,
        x: &Buf<f32>,
        y: &Buf<f32>,
        stride: u32,
    ) -> Result<(), ModelError> {
        let product = self.product(x, y, stride);
        self.matmul(matrix, &Product { precision: Precision::EXACT, epilogue: Epilogue::Store, ..product })
    }

    /// Records a product.
    pub(super) fn matmul(&mut self, matrix: &Matrix, product: &Product<'_>) -> Result<(), ModelError> {
        matrix.multiply(&mut self.ops.kernels, self.pass, product)
    }

    /// Records the products of the vectors of every row, each with its own matrix.
    pub(super) fn matmul_each(&mut self, matrices: &Matrix, vectors: &Vectors) -> Result<(), ModelError> {
        matrices.multiply_each(&mut self.ops.kernels, self.pass, self.batch.rows, vectors)
    }

    /// Whether a product of all rows can apply a norm to its input.
    pub(super) fn norms(&self, matrix: &Matrix) -> bool {
        matrix.norms(&self.ops.kernels, self.rows(), self.ops.precision)
    }

    /// Returns the input of a projection, and the norm that the product has to apply. The input is the stream if the
    /// product applies the norm itself (`inside`) or there is no norm; otherwise, it is normed rows.
    pub(super) fn normed<'b>(
        &mut self,
        weight: Option<&'b Buf<f32>>,
        inside: bool,
    ) -> (&'b Buf<f32>, Option<Norm<'b>>)
    where
        'a: 'b,
    {
        let Some(weight) = weight else { return (self.block_in, None) };
        let eps = self.config.rms_norm_eps;
        if inside {
            return (self.block_in, Some(Norm { weight, eps }));
        }
        let (rows, normed) = (0..self.rows(), &self.act.normed);
        self.rms_norm(RmsNorm {
            form: NormForm::Store,
            weight,
            rows,
            gather: None,
            x: self.block_in,
            out: normed,
        });
        (normed, None)
    }

    /// Records the norm of the residual stream of all rows.
    pub(super) fn norm_residual(&mut self, weight: &Buf<f32>) {
        let (act, rows) = (self.act, 0..self.rows());
        let norm =
            RmsNorm { form: NormForm::Store, weight, rows, gather: None, x: &act.residual, out: &act.normed };
        self.rms_norm(norm);
    }

    /// Records the norm of the rows that entries `rows` of `gather` name.
    pub(super) fn norm_gathered(&mut self, weight: &Buf<f32>, gather: Bind<u32>, rows: Range<u32>) {
        let act = self.act;
        let form = NormForm::Gather;
        let gather = Some(gather);
        self.rms_norm(RmsNorm { form, weight, rows, gather, x: &act.residual, out: &act.normed });
    }

    /// Records a norm of whole rows.
    fn rms_norm(&mut self, norm: RmsNorm<'_>) {
        let RmsNorm { form, weight, rows: range, gather, x, out } = norm;
        let (rows, width, eps) = (u32_of(range.len()), self.config.hidden_size, self.config.rms_norm_eps);
        let params = RmsNormParams { rows, width, eps, first: range.start };
        // The other forms bind a list that they do not read.
        let sources = gather.unwrap_or_else(|| self.tokens.bind());
        let buffers = RmsNormBuffers { x: x.bind(), sources, weight: weight.bind(), out: out.bind() };
        let pipeline = match form {
            NormForm::Store => &self.ops.norm,
            NormForm::Add => &self.ops.norm_add,
            NormForm::Gather => &self.ops.norm_gather,
        };
        self.pass.dispatch(pipeline, &params, buffers);
    }

    /// Records the softcap of the first `rows` rows of logits, if the model has one.
    pub(super) fn cap_logits(&mut self, rows: u32) {
        let (Some(cap), cols) = (self.config.logit_softcap, self.config.vocab_size) else { return };
        let params = SoftcapParams { rows, cols, cap };
        let buffers = SoftcapBuffers { x: self.act.logits.bind() };
        self.pass.dispatch(&self.ops.softcap, &params, buffers);
    }

    /// Writes `bias` to every row of `y`.
    pub(super) fn set_bias(&mut self, bias: &Buf<f32>, y: &Buf<f32>) {
        let pipeline = Arc::clone(&self.ops.bias);
        self.bias(&pipeline, bias, y);
    }

    /// Adds `bias` to every row of `y`.
    pub(super) fn add_bias(&mut self, bias: &Buf<f32>, y: &Buf<f32>) {
        let pipeline = Arc::clone(&self.ops.bias_add);
        self.bias(&pipeline, bias, y);
    }

    fn bias(&mut self, pipeline: &Arc<Pipeline>, bias: &Buf<f32>, y: &Buf<f32>) {
        let (rows, cols) = (self.rows(), u32_of(bias.len()));
        let params = BiasParams { rows, cols, stride: cols, first: 0 };
        self.pass.dispatch(pipeline, &params, BiasBuffers { added: bias.bind(), y: y.bind() });
    }

    /// Records the RMS norm of head slices of every row, in place.
    pub(super) fn norm_head_slices(&mut self, slices: HeadSlices, eps: f32, weight: &Buf<f32>, x: &Buf<f32>) {
        let buffers = NormHeadsBuffers { weight: weight.bind(), x: x.bind() };
        let pipeline = Arc::clone(&self.ops.norm_heads);
        self.norm_head_slices_by(&pipeline, slices, eps, buffers);
    }

    /// Records a norm of head slices of every row by the caller's kernel.
    pub(super) fn norm_head_slices_by(
        &mut self,
        pipeline: &Arc<Pipeline>,
        slices: HeadSlices,
        eps: f32,
        on: NormHeadsBuffers,
    ) {
        let (rows, HeadSlices { heads, width, stride, first }) = (self.rows(), slices);
        let params = NormHeadsParams { rows, heads, width, stride, first, eps };
        self.pass.dispatch(pipeline, &params, on);
    }

    /// Returns the rotation of `heads` heads by the step's positions, for rows of `stride` f32, from dimension `first` of each
    /// head on.
    pub(super) fn rotation(&self, heads: u32, stride: u32, first: u32) -> Rotation<'a> {
        let pairs = self.config.rope.rotary_dims / 2;
        Rotation { cos_sin: self.batch.cos_sin(), pairs, back: false, heads, stride, first }
    }

    /// Rotates heads of every row, in place.
    pub(super) fn rotate(&mut self, pipeline: &Arc<Pipeline>, rotation: Rotation<'_>, x: &Buf<f32>) {
        let Rotation { cos_sin, pairs, back, heads, stride, first } = rotation;
        let (rows, back) = (self.rows(), u32::from(back));
        let params = RopeParams { rows, heads, stride, pairs, first, back };
        self.pass.dispatch(pipeline, &params, RopeBuffers { cs: cos_sin.bind(), x: x.bind() });
    }
}
