//! The forward pass: one config-driven decoder over paged KV.

mod activations;
mod ahead;
mod attend;
mod blocks;
mod choices;
mod compressed;
mod draws;
mod head;
mod hyper;
mod indexer;
mod inputs;
mod latent;
mod layer;
mod load;
mod mlp;
mod moe;
mod partitions;
mod parts;
mod prefix;
mod residency;
mod sparse;
mod staged;
mod stream;
mod turns;
mod work;

pub use blocks::BlockRead;
pub use work::{Size, WeightSizes};

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline, PrefixPass};
use attn_kernels::kernel::paged_prefill::{KeyLoads, TILE_ROWS};
use attn_kernels::kernel::{KvDtype, paged_prefill_coop};

use crate::batch::{Sample, Slice, StepOutput};
use crate::kernel::embed;
use crate::matrix::{Kernels, Matrix, Precision};
use crate::{DecoderConfig, KvOptions, KvPool, ModelError, Offload, SparseOptions};
use activations::{Activations, decode_portion, portions};
use ahead::Ahead;
use attend::Attention;
use choices::Choices;
use compressed::CompressedState;
use draws::DrawState;
use head::Reads;
use hyper::HyperState;
use inputs::{Inputs, View};
use latent::LatentState;
use layer::Layer;
use moe::MoeState;
use residency::Residency;
use sparse::Sparse;
use staged::Staged;
use turns::Turns;

/// What a decoder is built for.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Tokens a block.
    pub block_size: u32,
    /// Give blocks back that no window reaches any more; see [`KvOptions`].
    pub recycle: bool,
    /// Blocks wanted in the pool.
    pub num_blocks: u32,
    /// Most rows of one step.
    pub max_rows: u32,
    /// Most samples of one step.
    pub max_seqs: u32,
    /// One order of arithmetic for a row whatever its phase and its company: prefill rows go through the decode kernel, one by
    /// one, in partitions of one size.
    pub reproducible: bool,
    /// Whether kernels may use cooperative matrices, where the device runs them.
    pub coop: bool,
    /// Tokens of prefixes that the prefills of a step attend in one piece, shared by its sequences: behind longer ones they
    /// attend chunk by chunk and merge. Rows that go through the decode kernel are split by it anyway.
    pub prefix_capacity: u32,
    /// Type that products with quantised weights round activations to.
    pub activations: ActivationType,
    /// Attention to selected blocks; `None` where all is attended.
    pub sparse: Option<SparseOptions>,
    /// Blocks in memory of the host, beyond those on the device.
    pub offload: Option<Offload>,
}

impl DecoderOptions {
    /// What of it shapes the cache.
    #[must_use]
    pub fn kv(&self) -> KvOptions {
        KvOptions { dtype: self.kv_dtype, block_size: self.block_size, recycle: self.recycle }
    }

    /// Tokens of the blocks that a policy selects.
    fn select_block(&self) -> u32 {
        self.sparse.as_ref().map_or(self.block_size, |sparse| sparse.policy.block_size().get())
    }

    /// Whether kernels may round to f16 for cooperative matrices, where the device runs them: that costs about what an f16 cache
    /// does, codes of 8 bits lose nothing more that counts, and none of these kernels serves an f32 cache.
    fn coop(&self, gpu: &Gpu) -> bool {
        gpu.runs_coop() && self.coop && !self.reproducible
    }

    /// Roundings that products may apply to activations on a device.
    fn precision(&self, gpu: &Gpu) -> Precision {
        let rounded = self.kv_dtype != KvDtype::F32;
        Precision { f16: rounded && self.coop(gpu), int8: rounded && self.activations.is_int8(gpu) }
    }
}

/// Type of the activations of a product with quantised weights, on the way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ActivationType {
    /// [`Int8`](Self::Int8) on GPUs, [`F32`](Self::F32) on software drivers, which it slows down.
    #[default]
    Auto,
    /// f32, or f16 where cooperative matrices run.
    F32,
    /// Codes of 8 bits by blocks of 32, as llama.cpp's `Q8_1`, for steps of few rows and for all steps where no cooperative
    /// matrices run: integer dot products do four multiplications in one. Not with an f32 cache, which asks for exactness.
    Int8,
}

impl ActivationType {
    fn is_int8(self, gpu: &Gpu) -> bool {
        self == Self::Int8 || self == Self::Auto && !gpu.is_cpu()
    }
}

/// A model on a device.
#[derive(Debug)]
pub struct Decoder {
    gpu: Arc<Gpu>,
    config: DecoderConfig,
    options: DecoderOptions,
    kernels: Kernels,
    pipelines: Pipelines,
    embedding: Matrix,
    /// `None` where the embedding is tied.
    head: Option<Matrix>,
    final_norm: Buf<f32>,
    layers: Vec<Layer>,
    /// Of the tensors that all of these came from.
    sizes: WeightSizes,
    kv: KvPool,
    views: Vec<View>,
    turns: Turns,
    activations: Activations,
    inputs: Inputs,
    draws: DrawState,
    /// Where layers have experts.
    moe: Option<MoeState>,
    /// Where attention goes through latents.
    latent: Option<LatentState>,
    /// Where it goes to compressed entries.
    compressed: Option<CompressedState>,
    /// Where there are several residual streams.
    hyper: Option<HyperState>,
    key_loads: KeyLoads,
    /// Whether rows of prefills are attended one by one, by the decode kernel.
    by_rows: bool,
    /// Whether prefills are attended by cooperative matrices.
    coop: bool,
    /// Roundings that products may apply to activations.
    precision: Precision,
    sparse: Option<Sparse>,
    /// Where selected blocks are fetched from the host.
    residency: Option<Residency>,
    /// Where kernels cannot reach the blocks on the host.
    staged: Option<Staged>,
    choices: Option<Choices>,
    /// Prefixes that the step in progress attends in chunks, by view.
    prefixes: Vec<Option<PrefixPass>>,
    /// Encoded while the last step ran.
    ahead: Option<Ahead>,
    steps_ahead: u64,
}

#[derive(Debug)]
struct Pipelines {
    embed: Arc<Pipeline>,
    norm: Arc<Pipeline>,
    norm_gather: Arc<Pipeline>,
    norm_heads: Arc<Pipeline>,
    bias: Arc<Pipeline>,
    bias_add: Arc<Pipeline>,
    rope_append: Arc<Pipeline>,
    copy_blocks: Arc<Pipeline>,
    /// By view.
    attention: Vec<Attention>,
    apply_sinks: Arc<Pipeline>,
    /// The same over listed blocks.
    selected: Option<Attention>,
    log_prob: Arc<Pipeline>,
}

/// Multiply-adds after which a submission ends: a few milliseconds on a large GPU, well under a second on a small one.
const CUT: u64 = 50_000_000_000;

/// Most layers of a submission: the device works while the host records and encodes the rest.
const CUT_LAYERS: usize = 8;

impl Decoder {
    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The KV cache.
    #[must_use]
    pub fn kv(&self) -> &KvPool {
        &self.kv
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Runs one step and waits for what it draws.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, blocks outside the pool, masks that leave no token, and what the device reports.
    ///
    /// # Panics
    /// When there are more rows or samples than the decoder was built for, or a table is too short.
    pub fn step(&mut self, slices: &[Slice<'_>], samples: &[Sample<'_>]) -> Result<StepOutput, ModelError> {
        let how = (self.prefill(), &self.turns);
        let mut plan = inputs::plan(&self.config, &self.options, &self.views, slices, samples, how)?;
        plan.check_blocks(self.kv.num_blocks())?;
        self.plan_stream(slices, &mut plan)?;
        self.cut(&mut plan);
        if let Some(compressed) = &mut self.compressed {
            let step = compressed.plan(&self.config, slices, &plan);
            compressed.write(&self.gpu, &step)?;
            plan.views[0].all.cut.max_partitions = step.max_partitions;
            plan.compressed = Some(step);
        }
        self.inputs.write(&self.gpu, &plan)?;
        self.draws.write(&plan.draws)?;
        let listed = plan.views.iter().map(|view| self.most_listed(&view.selected)).max().unwrap_or(0);
        self.activations.fit_partials(&self.gpu, &self.config, &plan, listed)?;
        if let Some(indexer) = self.latent.as_mut().and_then(|latent| latent.indexer.as_mut()) {
            indexer.write(&self.gpu, &plan)?;
        }
        let shape = self.shape(&plan);
        let (submission, reads) = match self.take_ahead(&plan, shape.as_ref())? {
            Some(ahead) => (self.gpu.send(ahead.step)?.defer(), ahead.reads),
            None => {
                if let Some(sparse) = &mut self.sparse {
                    let spare = self.residency.as_ref().map_or(0, Residency::num_slots);
                    sparse.begin(&self.gpu, (&self.config, &self.kv), &plan, slices, spare)?;
                }
                self.begin_residency(&plan)?;
                self.begin_staged(&plan)?;
                self.begin_choices(&plan)?;
                let (pass, reads) = self.record(&plan, true)?;
                (self.gpu.submit(pass)?.defer(), reads)
            }
        };
        if let Some(shape) = shape {
            self.encode_ahead(&plan, shape)?;
        }
        let done = self.gpu.collect(submission)?;
        self.end_prefixes();
        self.take(&plan, reads, done)
    }

    /// Records a step; `in_pieces`, of which all but the last are on their way then.
    fn record(&mut self, plan: &inputs::Plan, in_pieces: bool) -> Result<(Pass, Reads), ModelError> {
        let mut pass = Pass::new("step");
        self.embed(&mut pass, plan.rows);
        self.begin_streams(&mut pass, plan.rows);
        self.compressed_slots(&mut pass, plan);
        self.begin_prefixes(&mut pass, plan)?;
        let most_layers = self.layers_a_submission(plan);
        let (mut since_cut, mut next_cut) = (0, 1);
        for index in 0..self.layers.len() {
            self.layer(&mut pass, index, plan)?;
            self.copy_choices(&mut pass, index, plan);
            since_cut += 1;
            if in_pieces && (since_cut >= most_layers || index + 1 == next_cut) {
                self.gpu.flush(&mut pass)?;
                since_cut = 0;
            } else if since_cut >= most_layers {
                pass.cut();
                since_cut = 0;
            }
            if index + 1 == next_cut {
                // Twice as many layers each time: the device is busy soon, and never waits for a submission's encoding.
                next_cut += next_cut.min(CUT_LAYERS);
            }
        }
        self.end_streams(&mut pass, plan)?;
        let reads = self.record_head(&mut pass, plan)?;
        Ok((pass, reads))
    }

    /// How rows of prefills are attended.
    fn prefill(&self) -> inputs::Prefill {
        let tile_rows = if self.coop { paged_prefill_coop::TILE_ROWS } else { TILE_ROWS };
        inputs::Prefill { by_rows: self.by_rows, tile_rows }
    }

    fn embed(&self, pass: &mut Pass, rows: u32) {
        let width = self.config.hidden_size;
        for shard in self.embedding.shards() {
            let params = embed::EmbedParams { rows, first: shard.first, cols: shard.cols, width };
            let bindings: [Bind; 4] = [
                (&self.inputs.tokens).into(),
                (&shard.quants).into(),
                (&shard.scales).into(),
                (&self.activations.hidden).into(),
            ];
            pass.dispatch(&self.pipelines.embed, &params, &bindings, embed::grid(rows, width));
        }
    }

    /// Layers that fit a submission, at least one, by their multiply-adds.
    fn layers_a_submission(&self, plan: &inputs::Plan) -> u64 {
        let c = &self.config;
        let (hidden, inner) = (u64::from(c.hidden_size), u64::from(c.intermediate_size));
        let heads = u64::from(c.num_heads) * u64::from(c.head_dim);
        let kv = u64::from(c.num_kv_heads) * u64::from(c.head_dim);
        let dense = hidden * (2 * heads + 2 * kv + 3 * inner);
        let layer = u64::from(plan.rows) * (dense + 2 * heads * u64::from(plan.longest));
        (CUT / layer.max(1)).max(1)
    }
}
